"""Solves in straight-line code return what the loop returns, whatever happens in them."""

import pytest
import torch
from problems import PROBLEMS

from steadeq import Anderson, Broyden, Picard, fixed_point
from steadeq._internal.trees import Layout
from steadeq.adjoints import Unrolled
from steadeq.solvers import _history, broyden
from steadeq.solvers._straight import solve_straight

SOLVERS = {
    "picard": Picard(tol=0),
    "damped": Picard(tol=0, damping=0.5),
    "anderson": Anderson(tol=0),
    "short": Anderson(tol=0, memory=3),
    "mixed": Anderson(tol=0, mixing=0.7, ridge=1e-6),
    "broyden": Broyden(tol=0),
}


def solve_in_line(f, z0, inputs, **options):
    layout = Layout(z0)
    return layout.unpack(solve_straight(f, layout.pack(z0), inputs, layout=layout, **options)[0])


def with_budget(name, max_evals):
    solver = SOLVERS[name]
    return type(solver)(**{**vars(solver), "max_evals": max_evals})


def distance(f, z0, inputs, solver, **options):
    """Return how far both are from each other, relative to the larger of 1 and the size of the state."""
    with torch.no_grad():
        expected = fixed_point(f, z0, *inputs, solver=solver).z
        found = solve_in_line(f, z0, inputs, solver=solver, **options)
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1)).max())


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("max_evals", [1, 2, 3, 13])
def test_it_returns_the_state_of_the_loop(problem, name, max_evals):
    problem = PROBLEMS[problem](torch.float64, 5)
    assert distance(problem.f, problem.z0, problem.inputs, with_budget(name, max_evals)) < 1e-10


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("problem", ["affine", "rotation", "complex_pair", "mixed", "cosine", "tanh_network"])
def test_it_does_so_in_single_precision(problem, name):
    problem = PROBLEMS[problem](torch.float32, 5)
    assert distance(problem.f, problem.z0, problem.inputs, with_budget(name, 6)) < 1e-5


def wild(z, x):
    """Steep and bumpy: accelerated steps land where residuals are a thousand times larger."""
    return x + 0.3 * torch.tanh(z) + 0.5 * (z - x).pow(3)


def test_rejected_steps_are_taken_back_as_in_the_loop(monkeypatch):
    num_cleared = []
    rollback = _history.LastEvaluation.rollback

    def counted(self, new, rejected):
        matrices, cleared = rollback(self, new, rejected)
        num_cleared.append(int(cleared.sum()))
        return matrices, cleared

    monkeypatch.setattr(_history.LastEvaluation, "rollback", counted)
    x = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    z0 = 3 * torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for max_evals in (4, 6, 8):
        solver = Anderson(max_evals=max_evals, tol=0)
        with torch.no_grad():
            expected, moved = (fixed_point(wild, start, x, solver=solver).z for start in (z0, z0 * (1 + 1e-15)))
            found = solve_in_line(wild, z0, (x,), solver=solver)
        # Such solves magnify rounding: no farther off than another rounding of the start is.
        assert (found - expected).norm(dim=1).max() <= 10 * (moved - expected).norm(dim=1).max() + 1e-12
    assert sum(num_cleared) > 5


@pytest.mark.parametrize("name", SOLVERS)
def test_a_sample_that_turns_non_finite_keeps_its_best_state_and_touches_no_other(name):
    def f(z, x):
        return torch.where(x > 0, (z * z + 1).exp(), 0.5 * z + 1)

    x = torch.tensor([[-1.0], [1.0], [-1.0]], dtype=torch.float64).expand(3, 4)
    solver = with_budget(name, 8)
    assert distance(f, torch.zeros(3, 4, dtype=torch.float64), (x,), solver) < 1e-8
    found = solve_in_line(f, torch.zeros(3, 4, dtype=torch.float64), (x,), solver=solver)
    assert found.isfinite().all()
    assert torch.equal(found[0], found[2])


def test_dependent_columns_are_left_out_as_in_the_loop():
    # The state moves along one line only: from the third evaluation on, columns depend on each other.
    direction = torch.tensor([[1.0, 2.0, -1.0, 0.5]], dtype=torch.float64)
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)[:, None]

    def f(z, x):
        return direction * torch.cos(z[:, :1] + x)

    for max_evals in (3, 5, 8):
        assert distance(f, torch.zeros(6, 4, dtype=torch.float64), (x,), Anderson(max_evals=max_evals, tol=0)) < 1e-10


def test_broyden_starts_anew_where_the_loop_does(monkeypatch):
    num_lost = []
    clear = broyden.BroydenRule._clear
    monkeypatch.setattr(
        broyden.BroydenRule, "_clear", lambda self, rows: (num_lost.append(int(rows.sum())), clear(self, rows))[1]
    )

    def f(z, x):
        # y = 0 between the first two points: a secant pair that tells nothing.
        return z + x

    x = torch.ones(2, 3, dtype=torch.float64)
    assert distance(f, torch.zeros(2, 3, dtype=torch.float64), (x,), Broyden(max_evals=6, tol=0)) < 1e-10
    assert sum(num_lost) > 0


def test_nested_and_half_precision_states():
    def f(z, x):
        return {"a": 0.5 * z["b"].float().mean(dim=(1, 2), keepdim=True)[:, 0] + x, "b": (0.5 * z["b"] + 1).half()}

    z0 = {"a": torch.zeros(3, 1), "b": torch.zeros(3, 2, 2, dtype=torch.float16)}
    x, solver = torch.ones(3, 1), Anderson(max_evals=5, tol=0)
    with torch.no_grad():
        expected = fixed_point(f, z0, x, solver=solver).z
        found = solve_in_line(f, z0, (x,), solver=solver)
    assert found["b"].dtype == torch.float16
    assert torch.allclose(found["a"], expected["a"], atol=1e-5)
    assert torch.allclose(found["b"], expected["b"], atol=1e-3)


def test_a_loop_ends_at_its_last_state():
    turn = torch.tensor([[0.0, -1.2], [1.2, 0.0]], dtype=torch.float64)

    def f(z, x):
        return z @ turn.T + x

    x, z0, solver = (
        torch.ones(2, 2, dtype=torch.float64),
        torch.zeros(2, 2, dtype=torch.float64),
        Picard(max_evals=7, tol=0),
    )
    with torch.no_grad():
        expected = fixed_point(f, z0, x, solver=solver, adjoint=Unrolled()).z
    assert torch.equal(solve_in_line(f, z0, (x,), solver=solver, keep_last=True), expected)
