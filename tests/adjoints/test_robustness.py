import pytest
import torch
from adjoints.cells import (
    BACKWARD_SOLVERS,
    EXACT,
    TIGHT,
    TanhCell,
    all_adjoints,
    energy,
    largest_error,
    leaf,
    relative_error,
)

from steadeq import Broyden, Implicit, NewtonKrylov, Picard, Status, fixed_point

ADJOINTS = all_adjoints(1e-5)
each_adjoint = pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)
each_backward_solver = pytest.mark.parametrize("solver", BACKWARD_SOLVERS.values(), ids=BACKWARD_SOLVERS)
BROYDEN = Broyden(max_evals=60, tol=1e-6)


@each_adjoint
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40, 1e-6])
def test_scaling_the_loss_scales_the_gradient(adjoint, scale):
    cell, x = TanhCell(24, 0.9, torch.float32), leaf(6, 24, dtype=torch.float32)
    sources = [*cell.parameters(), x]
    loss = energy(fixed_point(cell, torch.zeros_like(x), x, solver=BROYDEN, adjoint=adjoint).z)
    expected = torch.autograd.grad(loss, sources, retain_graph=True)
    scaled = [gradient / scale for gradient in torch.autograd.grad(scale * loss, sources)]
    # By a power of two rounding is no excuse; differences of f, as Newton's method takes them, amplify that of 1e-6.
    is_newton = isinstance(adjoint, Implicit) and isinstance(adjoint.solver, NewtonKrylov)
    assert largest_error(scaled, expected) < (1e-4 if is_newton and scale == 1e-6 else 1e-6)


@each_adjoint
def test_rows_without_a_gradient_stay_without_one(adjoint):
    cell, x = TanhCell(8, 0.9), leaf(5, 8)
    g = torch.randn(5, 8, dtype=torch.float64)
    g[[1, 4]] = 0
    z = fixed_point(cell, torch.zeros_like(x), x, solver=BROYDEN, adjoint=adjoint).z
    z.backward(g)
    assert torch.equal(x.grad[[1, 4]], torch.zeros(2, 8, dtype=torch.float64))
    kept = x.detach()[[0, 2, 3]].requires_grad_()
    fixed_point(cell, torch.zeros_like(kept), kept, solver=BROYDEN, adjoint=adjoint).z.backward(g[[0, 2, 3]])
    assert relative_error(x.grad[[0, 2, 3]], kept.grad) < 1e-6
    assert cell.weight.grad.isfinite().all()


@each_adjoint
def test_a_gradient_of_zero_is_zero_for_everything(adjoint):
    cell, x = TanhCell(8, 0.9, torch.float32), leaf(5, 8, dtype=torch.float32)
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=BROYDEN, adjoint=adjoint)
    (0 * eq.z.sum()).backward()
    for source in (*cell.parameters(), x):
        assert torch.equal(source.grad, torch.zeros_like(source))
    if isinstance(adjoint, Implicit):
        assert eq.backward.converged.all()


@each_backward_solver
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_is_reported_and_stays_in_its_row(solver, poison):
    cell, x = TanhCell(6, 0.8), leaf(4, 6)
    g = torch.randn(4, 6, dtype=torch.float64)
    g[1, 3] = poison
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=Implicit(solver))
    eq.z.backward(g)
    assert not x.grad[1].isfinite().all()
    assert x.grad[[0, 2, 3]].isfinite().all()
    assert eq.backward.status[1] == Status.NON_FINITE
    assert eq.backward.converged[[0, 2, 3]].all()


def test_a_singular_adjoint_system_is_reported_and_finite():
    # f(z) = z + x has J = I: no equilibrium, and no gradient either.
    x = leaf(3, 4)
    eq = fixed_point(lambda z, x: z + x, torch.zeros_like(x), x, solver=Picard(max_evals=3), adjoint=Implicit())
    eq.z.sum().backward()
    assert x.grad.isfinite().all()
    assert not eq.backward.converged.any()
    assert (eq.backward.residual > 0.5).all()


def test_non_contiguous_and_expanded_gradients_and_non_contiguous_inputs_work():
    cell = TanhCell(6)
    base = leaf(6, 4)
    z = fixed_point(cell, torch.zeros(4, 6, dtype=torch.float64), base.T, solver=TIGHT, adjoint=EXACT).z
    g = torch.randn(6, 4, dtype=torch.float64).T
    (actual,) = torch.autograd.grad(z, base, g)
    dense = base.detach().T.contiguous().requires_grad_()
    z = fixed_point(cell, torch.zeros_like(dense), dense, solver=TIGHT, adjoint=EXACT).z
    (expected,) = torch.autograd.grad(z, dense, g.contiguous())
    torch.testing.assert_close(actual, expected.T)
    # sum() hands a zero-stride tensor to backward.
    z = fixed_point(cell, torch.zeros_like(dense), dense, solver=TIGHT, adjoint=EXACT).z
    (expanded,) = torch.autograd.grad(z.sum(), dense, retain_graph=True)
    torch.testing.assert_close(expanded, torch.autograd.grad(z, dense, torch.ones_like(dense))[0])
