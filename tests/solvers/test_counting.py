import pytest
import torch
from problems import cosine, mixed, near_critical, tanh_network
from stubs import Counted

from steadeq import GMRES, Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point

SOLVERS = [Picard, Anderson, Broyden, NewtonKrylov, GMRES]
BUDGETS = [1, 2, 3, 4, 7, 20]


def solve(problem, solver, **options):
    f = Counted(problem.f)
    with torch.no_grad():
        return fixed_point(f, problem.z0, *problem.inputs, solver=solver, **options), f


def recompute(problem, value):
    image = problem.f(value, *problem.inputs)
    return (image - value).norm(dim=1) / image.norm(dim=1)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("make", [near_critical, mixed, tanh_network, cosine], ids=lambda make: make.__name__)
@pytest.mark.parametrize("max_evals", BUDGETS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_f_is_called_as_often_as_num_evals_says_and_never_more_than_max_evals(solver, max_evals, make, compact):
    solution, f = solve(make(torch.float64, 8), solver(max_evals=max_evals, tol=1e-4), compact=compact)
    assert f.calls == int(solution.num_evals.max()) <= max_evals
    assert solution.num_evals.dtype == torch.int64
    assert (solution.num_evals >= 1).all()
    assert solution.trace.shape == (f.calls, 8)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solve_that_needs_its_last_evaluation_converges_with_it(solver):
    problem = tanh_network(torch.float64, 1)
    solution, _ = solve(problem, solver(max_evals=200, tol=1e-6))
    count = int(solution.num_evals)
    assert solve(problem, solver(max_evals=count, tol=1e-6))[0].converged.all()
    # A method that plans with its budget may end as early with less, but never later than it says.
    if solver in (Picard, Anderson, Broyden):
        assert solve(problem, solver(max_evals=count - 1, tol=1e-6))[0].status.tolist() == [Status.MAX_EVALS]


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_cost_one_evaluation_more_and_change_nothing(solver):
    problem = tanh_network(torch.float64, 3)
    without, _ = solve(problem, solver(max_evals=9, tol=1e-3))
    f = Counted(problem.f)
    x = problem.inputs[0].clone().requires_grad_()
    solution = fixed_point(f, problem.z0, x, solver=solver(max_evals=9, tol=1e-3))
    assert f.calls == int(solution.num_evals.max()) + 1
    assert solution.value.requires_grad
    assert torch.equal(solution.value, without.value)
    assert torch.equal(solution.num_evals, without.num_evals)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_one_returns_the_start_with_its_residual(solver):
    problem = tanh_network(torch.float64, 3)
    z0 = torch.randn_like(problem.z0)
    with torch.no_grad():
        solution = fixed_point(problem.f, z0, *problem.inputs, solver=solver(max_evals=1, tol=1e-4))
    assert torch.equal(solution.value, z0)
    torch.testing.assert_close(solution.residual, recompute(problem, z0), rtol=1e-12, atol=0)
    assert solution.status.tolist() == [Status.MAX_EVALS] * 3
    assert solution.num_evals.tolist() == [1] * 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_one_can_converge(solver):
    problem = tanh_network(torch.float64, 3)
    solution = fixed_point(problem.f, problem.exact, *problem.inputs, solver=solver(max_evals=1, tol=1e-8))
    assert solution.converged.all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_two_goes_to_the_image_of_the_start(solver):
    problem = tanh_network(torch.float64, 3)
    solution, _ = solve(problem, solver(max_evals=2, tol=1e-8))
    image = problem.f(problem.z0, *problem.inputs)
    assert (solution.trace[1] < solution.trace[0]).all()
    torch.testing.assert_close(solution.value, image, rtol=1e-12, atol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_two_keeps_the_start_where_its_image_is_worse(solver):
    # Sample 0 moves towards the solution 10, sample 1 away from it.
    slope = torch.tensor([[0.5], [-5.0]])
    f = lambda z, slope: slope * (z - 10) + 10  # noqa: E731
    solution = fixed_point(f, torch.full((2, 1), 10.1), slope, solver=solver(max_evals=2, tol=1e-6))
    torch.testing.assert_close(solution.value, torch.tensor([[10.05], [10.1]]))


@pytest.mark.parametrize("max_evals", BUDGETS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_residual_is_that_of_the_value(solver, max_evals):
    problem = mixed(torch.float64, 9)
    solution, _ = solve(problem, solver(max_evals=max_evals, tol=1e-5))
    expected = recompute(problem, solution.value)
    torch.testing.assert_close(solution.residual, expected, rtol=1e-8, atol=1e-14)
    assert torch.equal(solution.converged, solution.residual <= 1e-5)


@pytest.mark.parametrize("max_evals", BUDGETS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_value_is_the_best_point_that_was_evaluated(solver, max_evals):
    problem = tanh_network(torch.float64, 4)
    solution, f = solve(problem, solver(max_evals=max_evals, tol=1e-9), compact=False)
    points = torch.stack(f.points)
    for sample in range(4):
        count = int(solution.num_evals[sample])
        best = int(solution.trace[:count, sample].argmin())
        assert torch.equal(solution.value[sample], points[best, sample])
        assert solution.residual[sample] == solution.trace[best, sample]


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_trace_holds_the_residual_of_every_point(solver):
    problem = tanh_network(torch.float64, 4)
    solution, f = solve(problem, solver(max_evals=20, tol=0), compact=False)
    expected = torch.stack([recompute(problem, point) for point in f.points])
    torch.testing.assert_close(solution.trace, expected, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_finished_sample_repeats_its_last_residual_in_the_trace(solver, compact):
    solution, _ = solve(mixed(torch.float64, 9), solver(max_evals=60, tol=1e-4), compact=compact)
    assert solution.num_evals.min() < solution.num_evals.max()
    for sample, count in enumerate(solution.num_evals.tolist()):
        line = solution.trace[:, sample]
        assert (line[: count - 1] > 1e-4).all()
        if solution.converged[sample]:
            assert (line[count - 1 :] == solution.residual[sample]).all()


@pytest.mark.parametrize("solver", [Picard, Anderson, Broyden])
def test_a_larger_budget_follows_the_same_path_and_is_never_worse(solver):
    problem = mixed(torch.float64, 5)
    longest, _ = solve(problem, solver(max_evals=20, tol=0))
    last = torch.full((5,), float("inf"), dtype=torch.float64)
    for max_evals in range(1, 20):
        solution, _ = solve(problem, solver(max_evals=max_evals, tol=0))
        torch.testing.assert_close(solution.trace, longest.trace[:max_evals], rtol=1e-6, atol=1e-12)
        assert (solution.residual <= last * (1 + 1e-6) + 1e-12).all()
        last = solution.residual


@pytest.mark.parametrize("max_evals", [2, 5, 45])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_tolerance_of_zero_spends_the_whole_budget(solver, max_evals):
    # Inputs that are hard to round away: no sample hits a residual of exactly zero.
    problem = near_critical(torch.float32, 4)
    solution, f = solve(problem, solver(max_evals=max_evals, tol=0))
    assert f.calls == max_evals or not solution.residual.any()
    assert (solution.num_evals == max_evals)[solution.residual > 0].all()
    assert (solution.status == Status.MAX_EVALS)[solution.residual > 0].all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_tighter_tolerance_never_costs_less(solver):
    problem, last = mixed(torch.float64, 9), torch.zeros(9)
    for tol in (1e-1, 1e-2, 1e-4, 1e-8):
        solution, _ = solve(problem, solver(max_evals=500, tol=tol))
        assert solution.converged.all()
        assert (solution.num_evals >= last).all()
        last = solution.num_evals


@pytest.mark.parametrize("solver", [Picard, Anderson, Broyden])
def test_the_result_does_not_depend_on_grad_mode_or_inference_mode(solver):
    problem = mixed(torch.float64, 9)
    with torch.no_grad():
        reference = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver())
    with torch.inference_mode():
        inference = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver())
    enabled = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver())
    for solution in (inference, enabled):
        assert torch.equal(solution.value, reference.value)
        assert torch.equal(solution.num_evals, reference.num_evals)


def test_gmres_counts_its_products():
    matrix = 0.3 * torch.randn(6, 6, dtype=torch.float64)
    operator = Counted(lambda u: u @ matrix.T)
    for max_evals in BUDGETS:
        operator.rows.clear()
        b = torch.randn(3, 6, dtype=torch.float64)
        _, solution = GMRES(max_evals=max_evals, tol=1e-10).solve_linear(operator, b)
        assert operator.calls == int(solution.num_evals.max()) <= max_evals
        assert solution.trace.shape == (operator.calls, 3)
