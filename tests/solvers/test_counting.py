import pytest
import torch
from problems import cosine, mixed, near_critical, tanh_network
from stubs import Counted
from torch.utils._python_dispatch import TorchDispatchMode

from steadeq import GMRES, Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point

SOLVERS = [Picard, Anderson, Broyden, NewtonKrylov]
BUDGETS = [1, 2, 3, 4, 7, 20]


def solve(problem, solver, **options):
    f = Counted(problem.f)
    with torch.no_grad():
        return fixed_point(f, problem.z0, *problem.inputs, solver=solver, **options), f


def recompute(problem, z):
    image = problem.f(z, *problem.inputs)
    return (image - z).norm(dim=1) / image.norm(dim=1)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("make", [near_critical, mixed, tanh_network, cosine], ids=lambda make: make.__name__)
@pytest.mark.parametrize("max_evals", BUDGETS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_f_is_called_as_often_as_num_evals_says_and_never_more_than_max_evals(solver, max_evals, make, compact):
    eq, f = solve(make(torch.float64, 8), solver(max_evals=max_evals, tol=1e-4), compact=compact)
    # Where samples of a cell stop one after the other for the first time, what is left of the budget pays for one look.
    num_evals, is_spread = int(eq.stats.num_evals.max()), len(eq.stats.num_evals.unique()) > 1
    assert f.calls - num_evals in ((0, 1) if is_spread else (0,))
    assert f.calls <= max_evals
    assert eq.stats.num_evals.dtype == torch.int64
    assert (eq.stats.num_evals >= 1).all()
    assert eq.stats.trace.shape == (num_evals, 8)


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
def test_gradients_cost_one_evaluation_more_and_change_nothing(solver):
    problem = tanh_network(torch.float64, 3)
    without, _ = solve(problem, solver(max_evals=9, tol=1e-3))
    f = Counted(problem.f)
    x = problem.inputs[0].clone().requires_grad_()
    eq = fixed_point(f, problem.z0, x, solver=solver(max_evals=9, tol=1e-3))
    assert f.calls == int(eq.stats.num_evals.max()) + 1
    assert eq.z.requires_grad
    assert torch.equal(eq.z, without.z)
    assert torch.equal(eq.stats.num_evals, without.stats.num_evals)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_one_returns_the_start_with_its_residual(solver):
    problem = tanh_network(torch.float64, 3)
    z0 = torch.randn_like(problem.z0)
    with torch.no_grad():
        eq = fixed_point(problem.f, z0, *problem.inputs, solver=solver(max_evals=1, tol=1e-4))
    assert torch.equal(eq.z, z0)
    torch.testing.assert_close(eq.stats.residual, recompute(problem, z0), rtol=1e-12, atol=0)
    assert eq.stats.status.tolist() == [Status.MAX_EVALS] * 3
    assert eq.stats.num_evals.tolist() == [1] * 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_one_can_converge(solver):
    problem = tanh_network(torch.float64, 3)
    eq = fixed_point(problem.f, problem.exact, *problem.inputs, solver=solver(max_evals=1, tol=1e-8))
    assert eq.stats.converged.all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_two_goes_to_the_image_of_the_start(solver):
    problem = tanh_network(torch.float64, 3)
    eq, _ = solve(problem, solver(max_evals=2, tol=1e-8))
    image = problem.f(problem.z0, *problem.inputs)
    assert (eq.stats.trace[1] < eq.stats.trace[0]).all()
    torch.testing.assert_close(eq.z, image, rtol=1e-12, atol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_two_keeps_the_start_where_its_image_is_worse(solver):
    # Sample 0 moves towards the solution 10, sample 1 away from it.
    slope = torch.tensor([[0.5], [-5.0]])
    f = lambda z, slope: slope * (z - 10) + 10  # noqa: E731
    eq = fixed_point(f, torch.full((2, 1), 10.1), slope, solver=solver(max_evals=2, tol=1e-6))
    torch.testing.assert_close(eq.z, torch.tensor([[10.05], [10.1]]))


@pytest.mark.parametrize("max_evals", BUDGETS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_residual_is_that_of_the_state(solver, max_evals):
    problem = mixed(torch.float64, 9)
    eq, _ = solve(problem, solver(max_evals=max_evals, tol=1e-5))
    expected = recompute(problem, eq.z)
    torch.testing.assert_close(eq.stats.residual, expected, rtol=1e-8, atol=1e-14)
    assert torch.equal(eq.stats.converged, eq.stats.residual <= 1e-5)


@pytest.mark.parametrize("max_evals", BUDGETS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_state_is_the_best_point_that_was_evaluated(solver, max_evals):
    problem = tanh_network(torch.float64, 4)
    eq, f = solve(problem, solver(max_evals=max_evals, tol=1e-9), compact=False)
    points = torch.stack(f.points)
    for sample in range(4):
        count = int(eq.stats.num_evals[sample])
        best = int(eq.stats.trace[:count, sample].argmin())
        assert torch.equal(eq.z[sample], points[best, sample])
        assert eq.stats.residual[sample] == eq.stats.trace[best, sample]


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_trace_holds_the_residual_of_every_point(solver):
    problem = tanh_network(torch.float64, 4)
    eq, f = solve(problem, solver(max_evals=20, tol=0), compact=False)
    expected = torch.stack([recompute(problem, point) for point in f.points])
    torch.testing.assert_close(eq.stats.trace, expected, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_finished_sample_repeats_its_last_residual_in_the_trace(solver, compact):
    eq, _ = solve(mixed(torch.float64, 9), solver(max_evals=60, tol=1e-4), compact=compact)
    assert eq.stats.num_evals.min() < eq.stats.num_evals.max()
    for sample, count in enumerate(eq.stats.num_evals.tolist()):
        line = eq.stats.trace[:, sample]
        assert (line[: count - 1] > 1e-4).all()
        if eq.stats.converged[sample]:
            assert (line[count - 1 :] == eq.stats.residual[sample]).all()


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


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_tighter_tolerance_never_costs_less(solver):
    problem, last = mixed(torch.float64, 9), torch.zeros(9)
    for tol in (1e-1, 1e-2, 1e-4, 1e-8):
        eq, _ = solve(problem, solver(max_evals=500, tol=tol))
        assert eq.stats.converged.all()
        assert (eq.stats.num_evals >= last).all()
        last = eq.stats.num_evals


@pytest.mark.parametrize("solver", [Picard, Anderson, Broyden])
def test_the_result_does_not_depend_on_grad_mode_or_inference_mode(solver):
    problem = mixed(torch.float64, 9)
    with torch.no_grad():
        reference = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver())
    with torch.inference_mode():
        inference = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver())
    enabled = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver())
    for eq in (inference, enabled):
        assert torch.equal(eq.z, reference.z)
        assert torch.equal(eq.stats.num_evals, reference.stats.num_evals)


def test_gmres_counts_its_products():
    matrix = 0.3 * torch.randn(6, 6, dtype=torch.float64)
    operator = Counted(lambda u: u @ matrix.T)
    for max_evals in BUDGETS:
        operator.rows.clear()
        b = torch.randn(3, 6, dtype=torch.float64)
        _, stats = GMRES(max_evals=max_evals, tol=1e-10).solve_linear(operator, b)
        assert operator.calls == int(stats.num_evals.max()) <= max_evals
        assert stats.trace.shape == (operator.calls, 3)


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
