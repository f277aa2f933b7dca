import warnings

import pytest
import torch
from adjoints.cells import TIGHT, Offset, TanhCell, energy, largest_error, leaf

from steadeq import Anderson, ConvergenceWarning, Picard, Reversible, Status, fixed_point
from steadeq._internal.trees import leaves, rebuild
from steadeq.models import DEQTransformerLM, MDEQClassifier


def by_hand(cell, z0, x, *, num_steps, damping):
    """Return the point after so many steps, by ordinary backpropagation."""
    previous, point = z0, z0
    for _ in range(num_steps):
        previous, point = point, (1 - damping) * previous + damping * cell(point, x)
    return point


@pytest.mark.parametrize("damping", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("max_evals", [1, 2, 3, 8, 21])
def test_gradients_are_those_of_the_steps_that_were_taken(max_evals, damping):
    cell, x, z0 = TanhCell(5), leaf(3, 5), leaf(3, 5)
    sources = [*cell.parameters(), x, z0]
    solver = Picard(max_evals=max_evals, tol=0.0, damping=damping)
    eq = fixed_point(cell, z0, x, solver=solver, adjoint=Reversible())
    z = by_hand(cell, z0, x, num_steps=max_evals - 1, damping=damping)
    torch.testing.assert_close(eq.z, z, rtol=1e-14, atol=1e-14)
    actual = torch.autograd.grad(energy(eq.z), sources, allow_unused=True, materialize_grads=True)
    expected = torch.autograd.grad(energy(z), sources, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)
    assert eq.backward.status.tolist() == [Status.CONVERGED] * 3


def test_samples_that_stop_at_different_steps_have_their_own_gradients():
    cell, x = TanhCell(5), leaf(4, 5)
    z0 = torch.zeros_like(x)
    with torch.no_grad():
        z0[1] = fixed_point(cell, z0, x, solver=TIGHT).z[1]
        z0[2] = fixed_point(cell, z0, x, solver=Picard(max_evals=6, tol=0)).z[2]
    solver = Picard(max_evals=24, tol=1e-2, damping=0.7)
    eq = fixed_point(cell, z0, x, solver=solver, adjoint=Reversible())
    assert len(set(eq.stats.num_evals.tolist())) >= 3
    sources = [*cell.parameters(), x]
    actual = torch.autograd.grad(energy(eq.z), sources)
    rows = [
        by_hand(cell, z0[i : i + 1], x[i : i + 1], num_steps=int(n) - 1, damping=0.7)
        for i, n in enumerate(eq.stats.num_evals)
    ]
    torch.testing.assert_close(actual, torch.autograd.grad(energy(torch.cat(rows)), sources), rtol=1e-8, atol=1e-10)
    alone = fixed_point(cell, z0[2:3], x[2:3], solver=solver, adjoint=Reversible())
    torch.testing.assert_close(alone.z, eq.z[2:3], rtol=1e-14, atol=1e-14)
    assert alone.stats.num_evals.item() == eq.stats.num_evals[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_of_narrow_dtypes_are_taken_back_bit_for_bit(dtype):
    cell, x = TanhCell(5).to(dtype), leaf(3, 5).detach().to(dtype).requires_grad_()
    solver = Picard(max_evals=30, tol=0.0, damping=0.5)
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Reversible())
    energy(eq.z).backward()
    assert eq.backward.residual.max() == 0


def test_real_cells_are_taken_back_bit_for_bit_and_have_the_gradients_of_their_steps():
    torch.manual_seed(0)
    solver = Picard(max_evals=12, tol=0.0, damping=0.5)
    mdeq = MDEQClassifier(channels=(8, 16), groups=4, expansion=2, final_channels=16).eval()
    text = DEQTransformerLM(vocab_size=50, features=16, num_heads=2, hidden_features=32, memory_length=4)
    words = torch.randint(50, (3, 2, 6))
    # With a memory, the cell's own weights make keys and values that are inputs.
    memory = text(words[2]).carry
    for model, *x in ((mdeq, torch.randn(2, 3, 16, 16)), (text, words[0]), (text, words[1], memory)):
        _, eq = model.solve(*x, solver=solver, adjoint=Reversible())
        parameters = list(model.layer.cell.parameters())
        actual = torch.autograd.grad(sum(energy(part) for part in leaves(eq.z)), parameters)
        assert eq.backward.residual.max() == 0
        start, inputs = model.encode(*x)
        previous, point = leaves(start), leaves(start)
        for _ in range(solver.max_evals - 1):
            images = leaves(model.layer.cell(rebuild(start, iter(point)), *inputs))
            previous, point = point, [(a + b) / 2 for a, b in zip(previous, images, strict=True)]
        expected = torch.autograd.grad(sum(map(energy, point)), parameters)
        assert largest_error(actual, expected) < 1e-4


def test_what_rounding_makes_impossible_is_warned_of():
    cell, x = TanhCell(5), leaf(3, 5)
    solver = Picard(max_evals=60, tol=0.0, damping=0.9)
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Reversible())
    with pytest.warns(ConvergenceWarning, match="could not reverse its steps"):
        energy(eq.z).backward()
    assert eq.backward.residual.max() > 1e-3
    assert eq.backward.status.tolist() == [Status.STAGNATED] * 3


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_weight_of_the_cell_may_have_made_an_input_too(is_shared):
    weight, x = leaf(4, 4), leaf(3, 4)

    def f(z, x, offset):
        offset = offset.value * offset.scales[0] * offset.scales[1] if is_shared else offset
        return torch.tanh(0.3 * z @ weight + x + offset)

    def inputs():
        # As keys and values of a memory are, which the attention of the cell projects once a solve.
        made = torch.tanh(weight.sum(dim=0))
        return Offset(made, (1 + made.square(), 0.5)) if is_shared else x @ weight

    z0 = torch.zeros_like(x)
    solver = Picard(max_evals=7, tol=0.0, damping=0.5)
    z = fixed_point(f, z0, x, inputs(), solver=solver, adjoint=Reversible()).z
    offset = inputs()
    expected = by_hand(lambda z, x: f(z, x, offset), z0, x, num_steps=6, damping=0.5)
    torch.testing.assert_close(
        torch.autograd.grad(energy(z), [weight, x]),
        torch.autograd.grad(energy(expected), [weight, x]),
        rtol=1e-8,
        atol=1e-10,
    )


def test_what_it_cannot_do_is_said():
    cell, x = TanhCell(5), leaf(3, 5)
    for solver in (Picard(), Anderson()):
        with pytest.raises(ValueError, match="damping below 1"):
            fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Reversible())
    solver = Picard(max_evals=5, tol=0.0, damping=0.5)
    doubled = 2 * x
    with pytest.raises(RuntimeError, match="pass it after z0 as an input"):
        fixed_point(lambda z: cell(z, doubled), torch.zeros_like(x), solver=solver, adjoint=Reversible())
    z = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Reversible()).z
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(energy(z), x, create_graph=True)


def test_failed_samples_do_not_touch_their_neighbors():
    cell, x = TanhCell(5), leaf(3, 5).detach()
    x[1, 2] = float("nan")
    x.requires_grad_()
    solver = Picard(max_evals=9, tol=0.0, damping=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Reversible())
    assert eq.stats.status.tolist() == [Status.MAX_EVALS, Status.NON_FINITE, Status.MAX_EVALS]
    alone = fixed_point(cell, torch.zeros(1, 5).double(), x[2:], solver=solver, adjoint=Reversible())
    torch.testing.assert_close(eq.z[2:], alone.z, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("which", ["weight", "input"])
def test_gradients_of_numbers_that_were_changed_since_the_solve_are_refused(which):
    cell, x = TanhCell(5), leaf(3, 5)
    solver = Picard(max_evals=8, tol=0.0, damping=0.5)
    loss = energy(fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Reversible()).z)
    with torch.no_grad():
        (x if which == "input" else next(cell.parameters())).mul_(0.5)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation between the solve and its backward pass"):
        loss.backward()
