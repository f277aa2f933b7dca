import re
import warnings

import pytest
import torch
from adjoints.cells import BACKWARD_SOLVERS, EXACT, TIGHT, TanhCell, energy, leaf

from steadeq import (
    GMRES,
    Anderson,
    Broyden,
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
    eq = solve(Implicit(solver))
    energy(eq.z).backward()
    record = eq.backward
    assert record.converged.all()
    assert record.residual.shape == record.num_evals.shape == record.status.shape == (3,)
    assert record.num_evals.dtype == torch.int64
    assert (record.residual <= solver.tol).all()
    assert (record.num_evals > 1).all()
    assert (record.num_evals <= solver.max_evals).all()
    assert record.trace.shape == (int(record.num_evals.max()), 3)
    torch.testing.assert_close(record.trace.amin(dim=0), record.residual)
    assert record.failures() == ""
    assert str(record).startswith("backward: 3 of 3 samples converged in")
    assert "CONVERGED" in repr(record)


def test_the_record_is_that_of_the_last_backward_and_holds_no_graph():
    eq = solve(EXACT)
    (0 * eq.z).sum().backward(retain_graph=True)
    first = eq.backward
    assert first.num_evals.tolist() == [0, 0, 0]
    (slope,) = torch.autograd.grad(energy(eq.z), eq.z, create_graph=True)
    energy(eq.z).backward(slope.sum())
    assert eq.backward is not first
    assert eq.backward.num_evals.min() > 0
    for tensor in (eq.backward.residual, eq.backward.trace):
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


@pytest.mark.parametrize(("adjoint", "num_products"), [(OneStep(), 0), (Phantom(7, 0.5), 6), (Shine(), 0)])
def test_inexact_adjoints_record_their_products_and_claim_no_convergence(adjoint, num_products):
    eq = solve(adjoint, solver=Broyden(max_evals=60, tol=1e-12))
    energy(eq.z).backward()
    assert eq.backward.num_evals.tolist() == [num_products] * 3
    assert eq.backward.status.tolist() == [Status.NOT_MEASURED] * 3
    assert not eq.backward.converged.any()
    assert eq.backward.residual.isnan().all()
    assert eq.backward.trace.shape == (0, 3)
    # Nothing fell short, so that there is nothing to advise.
    assert eq.backward.failures() == ""
    assert str(eq.backward) == f"backward: 3 samples, {num_products} vector-Jacobian products, residual not measured"
    assert "3 NOT_MEASURED" in repr(eq.backward)


def test_a_backward_solve_that_does_not_converge_is_recorded_and_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for batch in (3, 5):
            eq = solve(HARD, batch=batch)
            energy(eq.z).backward()
    assert eq.backward.status.tolist() == [Status.MAX_EVALS] * 5
    assert eq.backward.num_evals.tolist() == [2] * 5
    assert (eq.backward.residual > 1e-9).all()
    assert re.match(r"5 of 5 samples MAX_EVALS: .* Largest relative residual: ", eq.backward.failures())
    assert [warning.category for warning in caught] == [ConvergenceWarning]
    assert re.search(r"backward solve by GMRES\(.*\(MAX_EVALS\).*raise max_evals.*eq\.backward", str(caught[0].message))


SHORT = Picard(max_evals=2, tol=1e-12)


@pytest.mark.parametrize("adjoint", [EXACT, OneStep(), Phantom()])
def test_a_forward_solve_that_does_not_converge_warns_once(adjoint):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for batch in (3, 5):
            eq = solve(adjoint, solver=SHORT, batch=batch)
    assert not eq.stats.converged.any()
    assert [warning.category for warning in caught] == [ConvergenceWarning]
    assert re.search(r"forward solve by Picard\(max_evals=2.*\(MAX_EVALS\).*raise max_evals", str(caught[0].message))


def test_what_went_wrong_is_part_of_the_warning():
    x = leaf(3, 4)
    with torch.no_grad():
        x[1, 2] = torch.nan
    with pytest.warns(ConvergenceWarning, match=r"\(MAX_EVALS, NON_FINITE\)"):
        fixed_point(TanhCell(4), torch.zeros_like(x), x, solver=SHORT)


def test_nothing_is_said_of_what_converges_or_never_claimed_to_or_has_no_gradient():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for adjoint in (EXACT, Implicit(), Implicit(Anderson(max_evals=60)), OneStep(), Phantom(), Shine()):
            energy(solve(adjoint, norm=0.6, solver=Broyden(tol=1e-10)).z).backward()
        fixed_point(torch.cos, torch.zeros(3, 4), solver=SHORT)
        with torch.no_grad():
            solve(EXACT, solver=SHORT)
        # A budget that is meant to be spent.
        fixed_depth = Picard(max_evals=5, tol=0)
        energy(solve(Implicit(GMRES(max_evals=3, tol=0)), solver=fixed_depth).z).backward()
        # What is unrolled has the gradient of what was computed, converged or not.
        energy(solve(Unrolled(), solver=SHORT).z).backward()
