import pytest
import torch
from problems import mixed, near_critical, tanh_network
from stubs import Counted
from torch.utils._python_dispatch import TorchDispatchMode

from steadeq import Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point

SOLVERS = [Picard, Anderson, Broyden, NewtonKrylov]
BUDGETS = [1, 2, 3, 7, 20]


def solve(problem, solver, **options):
    f = Counted(problem.f)
    with torch.no_grad():
        return fixed_point(f, problem.z0, *problem.inputs, solver=solver, **options), f


def recompute(problem, z):
    image = problem.f(z, *problem.inputs)
    return (image - z).norm(dim=1) / image.norm(dim=1)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("make", [near_critical, mixed, tanh_network], ids=lambda make: make.__name__)
@pytest.mark.parametrize("max_evals", BUDGETS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_counts_residuals_and_states_are_those_of_the_points_that_were_evaluated(solver, max_evals, make, compact):
    problem, tol = make(torch.float64, 8), 1e-4
    eq, f = solve(problem, solver(max_evals=max_evals, tol=tol), compact=compact)
    # Where samples of a cell stop one after the other for the first time, what is left of the budget pays for one look.
    num_evals, is_spread = int(eq.stats.num_evals.max()), len(eq.stats.num_evals.unique()) > 1
    assert f.calls - num_evals in ((0, 1) if is_spread else (0,))
    assert f.calls <= max_evals
    assert eq.stats.num_evals.dtype == torch.int64
    assert (eq.stats.num_evals >= 1).all()
    assert eq.stats.trace.shape == (num_evals, 8)
    torch.testing.assert_close(eq.stats.residual, recompute(problem, eq.z), rtol=1e-8, atol=1e-14)
    assert torch.equal(eq.stats.converged, eq.stats.residual <= tol)
    for sample, count in enumerate(eq.stats.num_evals.tolist()):
        line = eq.stats.trace[:, sample]
        assert (line[: count - 1] > tol).all()
        # The state is the best point, but for a state that ran away, and who has finished repeats its last residual.
        best = int((line[:count] == eq.stats.residual[sample]).nonzero()[0])
        assert make is near_critical or best == line[:count].argmin()
        assert (line[count - 1 :] == line[count - 1]).all()
        if not compact:
            points = torch.stack([point[sample] for point in f.points[:count]])
            assert torch.equal(eq.z[sample], points[best])
            rows = [x[sample : sample + 1] for x in problem.inputs]
            images = torch.cat([problem.f(point[None], *rows) for point in points])
            torch.testing.assert_close(line[:count], (images - points).norm(dim=1) / images.norm(dim=1))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solve_that_needs_its_last_evaluation_converges_with_it(solver):
    problem = tanh_network(torch.float64, 1)
    eq, _ = solve(problem, solver(max_evals=200, tol=1e-6))
    count = int(eq.stats.num_evals)
    assert solve(problem, solver(max_evals=count, tol=1e-6))[0].stats.converged.all()
    # A method that plans with its budget may end as early with less, but never later than it says.
    if solver in (Picard, Anderson, Broyden):
        assert solve(problem, solver(max_evals=count - 1, tol=1e-6))[0].stats.status.tolist() == [Status.MAX_EVALS]


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_two_keeps_the_start_where_its_image_is_worse(solver):
    # Sample 0 moves towards the solution 10, sample 1 away from it.
    slope = torch.tensor([[0.5], [-5.0]])
    f = lambda z, slope: slope * (z - 10) + 10  # noqa: E731
    eq = fixed_point(f, torch.full((2, 1), 10.1), slope, solver=solver(max_evals=2, tol=1e-6))
    torch.testing.assert_close(eq.z, torch.tensor([[10.05], [10.1]]))


@pytest.mark.parametrize("solver", [Picard, Anderson, Broyden])
def test_a_larger_budget_follows_the_same_path_and_is_never_worse(solver):
    problem = mixed(torch.float64, 5)
    longest, _ = solve(problem, solver(max_evals=20, tol=0))
    last = torch.full((5,), float("inf"), dtype=torch.float64)
    for max_evals in range(1, 20):
        eq, _ = solve(problem, solver(max_evals=max_evals, tol=0))
        torch.testing.assert_close(eq.stats.trace, longest.stats.trace[:max_evals], rtol=1e-6, atol=1e-12)
        assert (eq.stats.residual <= last * (1 + 1e-6) + 1e-12).all()
        last = eq.stats.residual


@pytest.mark.parametrize("max_evals", [2, 5, 45])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_tolerance_of_zero_spends_the_whole_budget(solver, max_evals):
    # Inputs that are hard to round away: no sample hits a residual of exactly zero.
    problem = near_critical(torch.float32, 4)
    eq, f = solve(problem, solver(max_evals=max_evals, tol=0))
    assert f.calls == max_evals or not eq.stats.residual.any()
    assert (eq.stats.num_evals == max_evals)[eq.stats.residual > 0].all()
    assert (eq.stats.status == Status.MAX_EVALS)[eq.stats.residual > 0].all()


class CountOperations(TorchDispatchMode):
    """Counts operations that compute or copy, and not those that only describe memory anew."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returns = func._schema.returns
        self.count += not any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("solver", "most"), [(Picard, 8), (Anderson, 21), (Broyden, 23)])
def test_an_evaluation_costs_so_many_operations_beyond_those_of_the_map(solver, most):
    generator = torch.Generator().manual_seed(0)
    weight = 0.95 * torch.linalg.qr(torch.randn(32, 32, generator=generator, dtype=torch.float64))[0]
    x = torch.randn(8, 32, generator=generator, dtype=torch.float64)
    counts = {}
    for max_evals in (11, 19, 20):
        with torch.no_grad(), CountOperations() as counted:
            # Three operations.
            f = lambda z, x: torch.tanh(z @ weight) + x  # noqa: E731
            eq = fixed_point(f, torch.zeros_like(x), x, solver=solver(max_evals=max_evals, tol=1e-12), compact=False)
        assert (eq.stats.status == Status.MAX_EVALS).all()
        counts[max_evals] = counted.count
    assert counts[19] - counts[11] <= 8 * (most + 3)
    # Every tenth evaluation looks for stagnation too.
    assert counts[20] - counts[19] <= most + 3 + 10
