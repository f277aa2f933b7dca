import re
import warnings

import pytest
import torch
from adjoint.cells import BACKWARD_SOLVERS, EXACT, TIGHT, TanhCell, energy, leaf

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


def test_a_backward_solve_that_does_not_converge_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for batch in (3, 5):
            energy(solve(HARD, batch=batch).value).backward()
    assert [warning.category for warning in caught] == [ConvergenceWarning]
    assert re.search(
        r"backward solve by GMRES\(.*\(MAX_EVALS\).*raise max_evals.*solution\.backward", str(caught[0].message)
    )


@pytest.mark.parametrize(
    "adjoint", [EXACT, Implicit(), Implicit(Anderson(max_evals=60)), OneStep(), Phantom(), Shine(), Unrolled()]
)
def test_what_converges_or_never_claimed_to_does_not_warn(adjoint):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        energy(solve(adjoint, norm=0.6, solver=Broyden(tol=1e-10)).value).backward()


SHORT = Picard(max_evals=2, tol=1e-12)


@pytest.mark.parametrize("adjoint", [EXACT, OneStep(), Phantom()])
def test_a_forward_solve_that_does_not_converge_warns_once(adjoint):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for batch in (3, 5):
            solution = solve(adjoint, solver=SHORT, batch=batch)
    assert not solution.converged.any()
    assert [warning.category for warning in caught] == [ConvergenceWarning]
    assert re.search(r"forward solve by Picard\(max_evals=2.*\(MAX_EVALS\).*raise max_evals", str(caught[0].message))


def test_what_went_wrong_is_part_of_the_warning():
    x = leaf(3, 4)
    with torch.no_grad():
        x[1, 2] = torch.nan
    with pytest.warns(ConvergenceWarning, match=r"\(MAX_EVALS, NON_FINITE\)"):
        fixed_point(TanhCell(4), torch.zeros_like(x), x, solver=SHORT)


def test_a_forward_solve_whose_gradient_nobody_can_ask_for_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed_point(torch.cos, torch.zeros(3, 4), solver=SHORT)
        with torch.no_grad():
            solve(EXACT, solver=SHORT)


def test_a_budget_that_is_meant_to_be_spent_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed_depth = Picard(max_evals=5, tol=0)
        energy(solve(Implicit(GMRES(max_evals=3, tol=0)), solver=fixed_depth).value).backward()
        # What is unrolled has the gradient of what was computed, converged or not.
        energy(solve(Unrolled(), solver=SHORT).value).backward()


def test_printing_a_record_needs_no_value():
    solution = solve(EXACT)
    energy(solution.value).backward()
    assert str(solution.backward).startswith("Solution(3 of 3 samples converged in")
    assert "CONVERGED" in repr(solution.backward)
