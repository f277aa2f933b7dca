import warnings

import pytest
import torch
from adjoint.cells import BACKWARD_SOLVERS, EXACT, TIGHT, TanhCell, energy, leaf

import steadeq
from steadeq import (
    GMRES,
    Anderson,
    Broyden,
    ConvergenceError,
    ConvergenceWarning,
    Implicit,
    OneStep,
    Phantom,
    Picard,
    Shine,
    Status,
    Unrolled,
    fixed_point,
)

HARD = Implicit(GMRES(max_evals=2, tol=1e-9))


def solve(adjoint, norm=0.9, batch=3, solver=TIGHT):
    cell, x = TanhCell(6, norm), leaf(batch, 6)
    return fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint)


@pytest.mark.parametrize("adjoint", [EXACT, OneStep(), Phantom(), Shine(), Unrolled()])
def test_there_is_no_record_before_backward(adjoint):
    assert solve(adjoint, solver=Broyden()).backward is None


@pytest.mark.parametrize("solver", BACKWARD_SOLVERS.values(), ids=BACKWARD_SOLVERS)
def test_the_record_tells_how_the_backward_solve_went(solver):
    solution = solve(Implicit(solver))
    energy(solution.value).backward()
    record = solution.backward
    assert record.converged.all()
    assert record.residual.shape == record.num_evals.shape == record.status.shape == (3,)
    assert record.num_evals.dtype == torch.int64
    assert (record.residual <= solver.tol).all()
    assert (record.num_evals > 1).all()
    assert (record.num_evals <= solver.max_evals).all()
    assert record.trace.shape == (int(record.num_evals.max()), 3)
    torch.testing.assert_close(record.trace.amin(dim=0), record.residual)
    assert record.raise_if_failed() is record


def test_gmres_records_the_true_residual_of_the_adjoint_system():
    weight = 0.9 * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    x, g = leaf(3, 6), torch.randn(3, 6, dtype=torch.float64)
    f = lambda z, x: z @ weight.T + x  # noqa: E731
    solution = fixed_point(f, torch.zeros_like(x), x, solver=TIGHT, adjoint=Implicit(GMRES(max_evals=4, tol=0.0)))
    solution.value.backward(g)
    # u is the gradient of x here.
    residual = x.grad - x.grad @ weight - g
    expected = torch.linalg.vector_norm(residual, dim=1) / torch.linalg.vector_norm(g, dim=1)
    torch.testing.assert_close(solution.backward.residual, expected)


def test_a_second_backward_replaces_the_record():
    solution = solve(EXACT)
    solution.value.sum().backward(retain_graph=True)
    first = solution.backward
    (0 * solution.value).sum().backward()
    assert solution.backward is not first
    assert first.num_evals.min() > 0
    assert solution.backward.num_evals.tolist() == [0, 0, 0]


def test_solutions_keep_their_own_records():
    cell, x = TanhCell(6), leaf(3, 6)
    one, two = (fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT) for _ in range(2))
    one.value.sum().backward()
    assert one.backward is not None
    assert two.backward is None


def test_the_record_holds_no_graph():
    solution = solve(EXACT)
    (slope,) = torch.autograd.grad(energy(solution.value), solution.value, create_graph=True)
    energy(solution.value).backward(slope.sum())
    for tensor in (solution.backward.residual, solution.backward.trace):
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


def test_running_out_of_products_is_recorded():
    solution = solve(HARD)
    energy(solution.value).backward()
    assert solution.backward.status.tolist() == [Status.MAX_EVALS] * 3
    assert solution.backward.num_evals.tolist() == [2] * 3
    assert (solution.backward.residual > 1e-9).all()
    with pytest.raises(ConvergenceError, match="3 of 3 samples MAX_EVALS"):
        solution.backward.raise_if_failed()


@pytest.mark.parametrize(("adjoint", "num_products"), [(OneStep(), 0), (Phantom(7, 0.5), 6), (Shine(), 0)])
def test_inexact_adjoints_record_their_products_and_claim_no_convergence(adjoint, num_products):
    solution = solve(adjoint, solver=Broyden(max_evals=60, tol=1e-12))
    energy(solution.value).backward()
    assert solution.backward.num_evals.tolist() == [num_products] * 3
    assert not solution.backward.converged.any()
    assert solution.backward.residual.isnan().all()


def test_a_backward_solve_that_does_not_converge_warns_once(monkeypatch):
    monkeypatch.setattr(steadeq.adjoint, "_has_warned", False)
    solution = solve(HARD)
    with pytest.warns(ConvergenceWarning, match=r"3 of 3 samples \(MAX_EVALS.*solution\.backward") as caught:
        energy(solution.value).backward()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        energy(solve(HARD).value).backward()


def test_the_warning_counts_the_samples_that_failed(monkeypatch):
    monkeypatch.setattr(steadeq.adjoint, "_has_warned", False)
    slope = torch.tensor([0.0, 0.9, 0.0, 0.9], dtype=torch.float64)[:, None]
    x = leaf(4, 5)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0]
    f = lambda z, x, slope: slope * (z @ rotation) + x  # noqa: E731
    value = fixed_point(f, torch.zeros_like(x), x, slope, solver=TIGHT, adjoint=HARD).value
    with pytest.warns(ConvergenceWarning, match="2 of 4 samples"):
        value.sum().backward()


@pytest.mark.parametrize(
    "adjoint", [EXACT, Implicit(), Implicit(Anderson(max_evals=60)), OneStep(), Phantom(), Shine(), Unrolled()]
)
def test_what_converges_or_never_claimed_to_does_not_warn(adjoint, monkeypatch):
    monkeypatch.setattr(steadeq.adjoint, "_has_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        energy(solve(adjoint, norm=0.6, solver=Broyden(tol=1e-10)).value).backward()


def test_a_forward_solve_that_does_not_converge_does_not_warn(monkeypatch):
    # Running out of evaluations is how these models are used; the status says it.
    monkeypatch.setattr(steadeq.adjoint, "_has_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = solve(EXACT, solver=Picard(max_evals=2, tol=1e-12))
    assert not solution.converged.any()


def test_printing_a_record_needs_no_value():
    solution = solve(EXACT)
    energy(solution.value).backward()
    assert str(solution.backward).startswith("Solution(3 of 3 samples converged in")
    assert "CONVERGED" in repr(solution.backward)
