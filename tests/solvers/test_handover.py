"""Anderson that goes over to Broyden's method where it stalls."""

from dataclasses import replace

import pytest
import torch
from problems import PROBLEMS

from steadeq import Anderson, Unrolled, fixed_point

WEIGHT = 0.9 * torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))[0]
"""All eigenvalues have the same size, which a short window cannot tell apart."""
X = 0.1 * torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
SOLVER = Anderson(max_evals=100, tol=1e-6, handover=True)


def f(z, x):
    return torch.tanh(z @ WEIGHT.to(z).T + x)


def solve(x=X, solver=SOLVER, **options):
    with torch.no_grad():
        return fixed_point(f, torch.zeros_like(x), x, solver=solver, **options)


def test_it_solves_what_anderson_stalls_on():
    plain, eq = solve(solver=replace(SOLVER, handover=False)), solve()
    assert int(eq.stats.converged.sum()) >= int(plain.stats.converged.sum()) + 2
    assert eq.stats.num_evals.float().mean() < plain.stats.num_evals.float().mean()
    residual = (f(eq.z, X) - eq.z).norm(dim=1) / f(eq.z, X).norm(dim=1)
    torch.testing.assert_close(residual, eq.stats.residual, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("name", ["affine", "cosine", "tanh_network", "complex_pair"])
@torch.no_grad()
def test_where_anderson_does_not_stall_nothing_changes(name):
    problem = PROBLEMS[name](torch.float64, 5)
    plain, eq = (
        fixed_point(problem.f, problem.z0, *problem.inputs, solver=Anderson(max_evals=19, tol=1e-8, handover=handover))
        for handover in (False, True)
    )
    assert torch.equal(plain.z, eq.z)
    assert torch.equal(plain.stats.num_evals, eq.stats.num_evals)


def test_a_sample_goes_over_by_itself():
    x, together = X.double(), solve(X.double(), replace(SOLVER, tol=1e-4))
    for row in (0, 7):
        alone = solve(x[row : row + 1], replace(SOLVER, tol=1e-4))
        assert alone.stats.num_evals[0] == together.stats.num_evals[row]
        torch.testing.assert_close(alone.z[0], together.z[row], rtol=1e-3, atol=1e-4)


def test_without_questions_to_the_host_it_is_the_same():
    solver = replace(SOLVER, tol=1e-4)
    eager, masked = solve(X.double(), solver, compact=False), solve(X.double(), replace(solver, check_every=4))
    assert torch.equal(eager.stats.num_evals, masked.stats.num_evals)
    torch.testing.assert_close(eager.z, masked.z, rtol=1e-5, atol=1e-6)


def test_it_can_be_recorded():
    x = X[:2].double().requires_grad_()
    solver = replace(SOLVER, max_evals=95, tol=0)
    fixed_point(f, torch.zeros_like(x), x, solver=solver, adjoint=Unrolled()).z.square().sum().backward()
    unrolled, x.grad = x.grad, None
    fixed_point(f, torch.zeros_like(x), x, solver=replace(solver, max_evals=200, tol=1e-9)).z.square().sum().backward()
    torch.testing.assert_close(unrolled, x.grad, rtol=0.05, atol=0.01)
