import pytest
import torch

from steadeq import DEQ, Picard, Status
from steadeq.nn import GaussianStart, solve_from_starts


def bistable(z, x):
    """Comes to rest at 2 x from below 1 and explodes from above."""
    return torch.where(z > 1, 2 * z, z / 2 + x)


def test_each_sample_keeps_its_best_start():
    x = torch.full((3, 1), 0.4)
    starts = [torch.tensor([[2.0], [0.5], [2.0]]), torch.tensor([[0.5], [2.0], [3.0]])]
    solver = Picard(max_evals=20, tol=1e-4)
    eq = solve_from_starts(bistable, starts, x, solver=solver)
    assert eq.stats.converged.tolist() == [True, True, False]
    torch.testing.assert_close(eq.z[:2], torch.full((2, 1), 0.8), rtol=0, atol=1e-3)
    alone = [solve_from_starts(bistable, [start], x, solver=solver).stats for start in starts]
    assert torch.equal(eq.stats.num_evals, alone[0].num_evals + alone[1].num_evals)
    assert torch.equal(eq.stats.residual, torch.minimum(alone[0].residual, alone[1].residual))


def test_a_start_that_fails_is_never_kept():
    f = lambda z: torch.where(z > 1, float("nan") * z, z / 2 + 0.4)  # noqa: E731
    eq = solve_from_starts(f, [torch.full((2, 1), 5.0), torch.zeros(2, 1)], solver=Picard(max_evals=40, tol=1e-5))
    assert eq.stats.status.tolist() == [Status.CONVERGED] * 2
    torch.testing.assert_close(eq.z, torch.full((2, 1), 0.8), rtol=0, atol=1e-4)


def test_states_of_several_tensors():
    f = lambda z: {"a": z["a"] / 2, "b": z["b"] / 2 + 1}  # noqa: E731
    z0 = {"a": torch.ones(2, 3), "b": torch.zeros(2, 4)}
    eq = solve_from_starts(f, [z0, z0], solver=Picard(max_evals=30, tol=1e-5))
    assert eq.z["a"].shape == (2, 3)
    torch.testing.assert_close(eq.z["b"], torch.full((2, 4), 2.0), rtol=0, atol=1e-3)


def test_no_start_is_refused():
    with pytest.raises(ValueError, match="starts is empty"):
        solve_from_starts(bistable, [], torch.zeros(1, 1))


def test_gaussian_starts_are_what_they_are_called():
    start = GaussianStart(std=0.3, generator=torch.Generator().manual_seed(0))(
        torch.zeros(1000, 20, dtype=torch.float64)
    )
    assert start.dtype == torch.float64
    assert start.std().item() == pytest.approx(0.3, rel=0.02)
    assert abs(start.mean().item()) < 0.01

    class Cell(torch.nn.Module):
        def forward(self, z, x):
            return z / 2 + x

    layer = DEQ(Cell(), init=GaussianStart(), solver=Picard(max_evals=40, tol=1e-6))
    torch.testing.assert_close(layer(torch.ones(2, 3)), torch.full((2, 3), 2.0), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=r"^std is"):
        GaussianStart(std=0.0)
