"""Linear systems u = A u + b, which GMRES solves and nothing else, and every fixed-point solver too."""

from dataclasses import replace

import pytest
import torch
from problems import PROBLEMS, mixed

from steadeq import (
    DEQ,
    GMRES,
    Status,
    fixed_point,
)

VARIANTS = [GMRES(max_evals=40, tol=1e-6), GMRES(max_evals=40, tol=1e-6, memory=4)]
BATCH = 12


def system(name, dtype=torch.float64, batch_size=3):
    """Return the operator of an affine problem, its right-hand sides and its solution."""
    problem = PROBLEMS[name](dtype, batch_size)
    *others, b = problem.inputs
    return (lambda u: problem.f(u, *others, torch.zeros_like(b))), b, problem


def rows(dtype=torch.float64, batch_size=BATCH):
    """Return a function of rows to an operator on them, and right-hand sides; samples are of different difficulty."""
    problem = mixed(dtype, batch_size)
    radius, b = problem.inputs
    # Products are summed by hand: a matrix product may round a row differently in a batch of another size.
    matrix = problem.f(torch.eye(6, dtype=dtype), torch.ones(6, 1, dtype=dtype), torch.zeros(6, 6, dtype=dtype)).T
    return (lambda index: lambda u: radius[index] * (u[:, None] * matrix).sum(-1)), b


@pytest.mark.parametrize("make", [lambda: GMRES(), lambda: GMRES(memory=5)])
def test_gmres_is_refused_where_a_fixed_point_is_looked_for(make):
    layer = DEQ(torch.nn.Tanh())
    for ask in (
        lambda: fixed_point(torch.tanh, torch.ones(1, 2), solver=make()),
        lambda: DEQ(torch.nn.Tanh(), solver=make()),
        lambda: layer.solve(z0=torch.ones(1, 2), solver=make()),
    ):
        with pytest.raises(TypeError, match=r"^solver is GMRES\(.*linear systems only.*Implicit\(GMRES\(\)\).*\.$"):
            ask()


def assert_same(actual, expected, index=slice(None)):
    (u, stats), (v, others) = actual, expected
    torch.testing.assert_close(u, v[index], rtol=1e-6, atol=1e-8)
    assert torch.equal(stats.status, others.status[index])
    assert torch.equal(stats.num_evals, others.num_evals[index])
    torch.testing.assert_close(stats.residual, others.residual[index], rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("solver", VARIANTS, ids=repr)
class TestNeighborsOfGMRES:
    def test_a_row_is_solved_as_if_alone(self, solver):
        operator, b = rows()
        together = solver.solve_linear(operator(slice(None)), b)
        assert together[1].num_evals.min() < together[1].num_evals.max()
        for row in range(BATCH):
            index = slice(row, row + 1)
            assert_same(solver.solve_linear(operator(index), b[index]), together, index)

    @pytest.mark.parametrize(("bad", "bad_from"), [("nan", 1), ("inf", 3), ("-inf", 4)])
    def test_a_row_whose_products_turn_bad_leaves_the_others_alone(self, solver, bad, bad_from):
        operator, b = rows()
        operator = operator(slice(None))
        u, stats = solver.solve_linear(operator, b)
        sample, calls = int(stats.num_evals.argmax()), []
        good = torch.arange(BATCH) != sample

        def breaking(u):
            calls.append(1)
            image = operator(u).clone()
            if len(calls) >= bad_from:
                image[sample] = float(bad)
            return image

        v, others = solver.solve_linear(breaking, b)
        assert others.status[sample] == Status.NON_FINITE
        assert others.num_evals[sample] == bad_from
        assert v.isfinite().all()
        assert_same((v[good], replace_rows(others, good)), (u, stats), good)

    def test_what_came_before_a_bad_product_is_kept(self, solver):
        operator, b = rows()
        operator, solver, calls = operator(slice(None)), replace(solver, tol=0), []

        def breaking(u):
            calls.append(1)
            return operator(u) if len(calls) < 4 else torch.full_like(u, float("nan"))

        u, stats = solver.solve_linear(breaking, b)
        _, before = solver.solve_linear(operator, b)
        assert stats.status.tolist() == [Status.NON_FINITE] * BATCH
        assert stats.num_evals.tolist() == [4] * BATCH
        assert stats.trace[3].isinf().all()
        assert torch.equal(stats.trace[:3], before.trace[:3])
        torch.testing.assert_close(stats.residual, before.trace[2], rtol=1e-6, atol=0)
        true = (operator(u) + b - u).norm(dim=1) / b.norm(dim=1)
        torch.testing.assert_close(true, stats.residual, rtol=1e-6, atol=0)


def replace_rows(stats, index):
    """Return the stats of some rows."""
    return replace(
        stats,
        residual=stats.residual[index],
        num_evals=stats.num_evals[index],
        status=stats.status[index],
        trace=stats.trace[:, index],
    )


class TestLimitsOfGMRES:
    @pytest.mark.parametrize("name", ["affine", "near_critical"])
    def test_a_tolerance_below_the_precision_ends_at_the_rounding_limit(self, name):
        operator, b, problem = system(name, torch.float32, 4)
        u, stats = GMRES(max_evals=3000, tol=1e-12, memory=40).solve_linear(operator, b)
        exact_hit = stats.residual <= 1e-12
        assert (stats.status == torch.where(exact_hit, int(Status.CONVERGED), int(Status.STAGNATED))).all()
        assert (stats.num_evals < 3000).all()
        assert (problem.error(u) < 20 * problem.condition * 1.2e-7).all()

    @pytest.mark.parametrize("radius", [0.9, 0.99])
    def test_what_is_just_within_the_tolerance_has_converged(self, radius):
        # Where u is a hundred times as long as b, rounding adds a few percent of such a residual.
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            basis = torch.linalg.qr(torch.randn(24, 24, generator=generator))[0]
            matrix = basis * torch.linspace(-0.5, radius, 24) @ basis.T
            operator, b = (lambda u, matrix=matrix: u @ matrix.T), torch.randn(1, 24, generator=generator)
            trace = GMRES(max_evals=20, tol=0).solve_linear(operator, b)[1].trace[:, 0]
            tol = float(1.001 * trace[(trace > 5e-4).sum() - 1])
            u, stats = GMRES(max_evals=20, tol=tol).solve_linear(operator, b)
            assert stats.converged.all()
            assert (operator(u) + b - u).norm() <= 1.05 * tol * b.norm()

    def test_by_default_the_space_is_never_restarted(self):
        # The cyclic shift: the residual stays 1 until the space has all dimensions.
        n = 36
        shift = torch.eye(n, dtype=torch.float64).roll(1, 0)
        b = torch.eye(n, dtype=torch.float64)[:1]
        operator = lambda u: u - u @ shift.T  # noqa: E731
        assert GMRES(max_evals=n).solve_linear(operator, b)[1].num_evals.tolist() == [n]
        assert not GMRES(max_evals=n, memory=n - 1).solve_linear(operator, b)[1].converged.any()
