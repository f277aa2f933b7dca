"""Whole solves as one graph: as the eager ones to rounding, without graph breaks, compiled once."""

import copy
import functools
import pickle

import pytest
import torch
from problems import PROBLEMS
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from steadeq import (
    DEQ,
    GMRES,
    Anderson,
    Broyden,
    Implicit,
    JacobianRegularizer,
    NewtonKrylov,
    OneStep,
    Picard,
    Shine,
    Status,
    Unrolled,
    fixed_point,
)
from steadeq._internal.trees import Layout
from steadeq.solvers._straight import is_supported, solve_straight

SOLVERS = [
    Picard(max_evals=9, tol=0),
    Picard(max_evals=9, tol=0, damping=0.6),
    Picard(max_evals=1, tol=0),
    Anderson(max_evals=9, tol=0),
    Anderson(max_evals=9, tol=0, memory=3, mixing=0.7, ridge=1e-4),
    Anderson(max_evals=2, tol=0),
    Anderson(max_evals=5, tol=0, memory=1),
    Broyden(max_evals=14, tol=0),
    Broyden(max_evals=2, tol=0),
]


class TanhCell(nn.Module):
    """A contraction."""

    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim, dtype=torch.float64)
        with torch.no_grad():
            self.linear.weight.mul_(0.8 / torch.linalg.matrix_norm(self.linear.weight, 2))

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


@pytest.fixture
def compiler(monkeypatch):
    """Compile with everything but the last step, the making of machine code; count the graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    yield counter
    torch._dynamo.reset()


def straight(problem, solver, **options):
    layout = Layout(problem.z0)
    z, stats = solve_straight(
        problem.f, layout.pack(problem.z0), problem.inputs, solver=solver, layout=layout, **options
    )
    return layout.unpack(z), stats


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@torch.no_grad()
def test_straight_line_code_follows_the_loop(problem, solver):
    problem = problem(torch.float64, 5)
    eq = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver, compact=False)
    z, stats = straight(problem, solver)
    # Paths part by rounding, which steps magnify; that of nearly critical problems most.
    torch.testing.assert_close(z, eq.z, rtol=1e-7, atol=1e-9)
    # The loop on the CPU ends where all samples are solved to the last digit.
    torch.testing.assert_close(stats.trace[: len(eq.stats.trace)], eq.stats.trace, rtol=1e-4, atol=1e-11)
    torch.testing.assert_close(stats.residual, eq.stats.residual, rtol=1e-4, atol=1e-11)
    is_clear = eq.stats.residual > 1e-12
    assert torch.equal(stats.status[is_clear], eq.stats.status[is_clear])
    assert torch.equal(stats.num_evals[is_clear], eq.stats.num_evals[is_clear])


@pytest.mark.parametrize("solver", [SOLVERS[0], SOLVERS[3], SOLVERS[7]], ids=str)
@torch.no_grad()
def test_samples_that_fail_or_are_solved_keep_what_they_had(solver):
    limit = torch.tensor([[9.0], [1.2], [9.0], [0.5], [9.0]], dtype=torch.float64).expand(5, 3)
    rate = torch.tensor([[0.5], [0.5], [0.0], [0.5], [-3.0]], dtype=torch.float64)
    z0 = torch.zeros(5, 3, dtype=torch.float64)

    def f(z, limit, rate):
        # Finite again after a NaN.
        return torch.where(z > limit, torch.nan, rate * z.nan_to_num().tanh() + 1)

    eq = fixed_point(f, z0, limit, rate, solver=solver, compact=False)
    layout = Layout(z0)
    z, stats = solve_straight(f, z0, (limit, rate), solver=solver, layout=layout)
    torch.testing.assert_close(z, eq.z)
    torch.testing.assert_close(stats.residual, eq.stats.residual, rtol=1e-6, atol=1e-14)
    assert torch.equal(stats.status, eq.stats.status)
    assert torch.equal(stats.num_evals, eq.stats.num_evals)
    assert stats.status[1] == stats.status[3] == Status.NON_FINITE
    assert stats.status[2] == Status.CONVERGED


@torch.no_grad()
def test_a_rejected_step_goes_back_as_in_the_loop():
    # Anderson is thrown far out by a plateau, and comes back; see the tests of safeguards.
    from solvers.test_faults import TestSafeguard, plateau

    case = TestSafeguard()
    solver = Anderson(max_evals=25, tol=0)
    eq = fixed_point(plateau, case.start, case.center, solver=solver, compact=False)
    z, stats = solve_straight(plateau, case.start, (case.center,), solver=solver, layout=Layout(case.start))
    assert eq.stats.trace.max() > 10 * eq.stats.trace[0].min()
    torch.testing.assert_close(z, eq.z, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(stats.trace, eq.stats.trace, rtol=1e-3, atol=1e-9)


def test_what_adapts_to_numbers_is_no_straight_line():
    assert not is_supported(Anderson(tol=1e-3))
    assert not is_supported(NewtonKrylov(tol=0))
    assert not is_supported(Broyden(max_evals=9, tol=0, memory=4))


@pytest.mark.parametrize("solver", [SOLVERS[0], SOLVERS[3], SOLVERS[7]], ids=str)
def test_a_solve_is_one_graph_with_the_result_of_the_eager_one(solver, compiler):
    cell, x = TanhCell(4), torch.randn(6, 4, dtype=torch.float64)
    layer = DEQ(cell, solver=solver, compile=True)
    with torch.no_grad():
        found, eager = layer.solve(x), DEQ(cell, solver=solver).solve(x)
    torch.testing.assert_close(found.z, eager.z, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.stats.residual, eager.stats.residual, rtol=1e-4, atol=1e-12)
    assert compiler.frame_count == 1


def test_nothing_is_compiled_anew_over_steps_and_a_batch_of_any_size_once_more(compiler):
    cell = TanhCell(4)
    layer = DEQ(cell, solver=Anderson(max_evals=4, tol=0), compile=True)
    optimizer = torch.optim.SGD(cell.parameters(), lr=1e-2)
    for size in (6, 6, 5, 3, 7, 6):
        layer(torch.randn(size, 4, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert compiler.frame_count == 2


@pytest.mark.parametrize(
    "adjoint", [Implicit(GMRES(tol=1e-12)), OneStep(), Shine(), Unrolled(), Unrolled(last=3)], ids=str
)
@pytest.mark.parametrize("kind", [Picard, Anderson, pytest.param(Broyden, marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_eager_solve(adjoint, kind, compiler):
    if isinstance(adjoint, Shine) and kind is not Broyden:
        pytest.skip("Shine needs Broyden.")
    solver = kind(max_evals=6, tol=0)
    gradients = []
    for compile in (False, True):
        torch.manual_seed(0)
        cell, x = TanhCell(4), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        DEQ(cell, solver=solver, adjoint=adjoint, compile=compile)(x).square().sum().backward()
        gradients.append([x.grad, *(parameter.grad for parameter in cell.parameters())])
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-9)


def test_the_penalty_by_difference_works_with_it(compiler):
    cell, x = TanhCell(4), torch.randn(5, 4, dtype=torch.float64)
    penalties = []
    for compile in (False, True):
        torch.manual_seed(0)
        eq = DEQ(cell, solver=Picard(max_evals=12, tol=0), compile=compile).solve(x)
        penalties.append(JacobianRegularizer(weight=1.0, estimator="difference")(eq, step=0))
    torch.testing.assert_close(*penalties, rtol=1e-6, atol=1e-9)
    penalties[1].backward()


class Pair(nn.Module):
    """A cell of two states of different shapes, with inputs in a dict."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, z, x):
        a, b = z
        return torch.tanh(self.first(a) + x["a"] + b.mean(dim=(1, 2))[:, None]), torch.tanh(self.second(b) + x["b"])


@torch.no_grad()
def test_nested_states_and_inputs(compiler):
    cell, x = Pair(), {"a": torch.randn(4, 3), "b": torch.randn(4, 2, 5)}
    z0 = (torch.zeros(4, 3), torch.zeros(4, 2, 5))
    solver = Anderson(max_evals=4, tol=0)
    eager = fixed_point(cell, z0, x, solver=solver)
    found = fixed_point(cell, z0, x, solver=solver, compile=True)
    for one, other in zip(found.z, eager.z, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    fixed_point(cell, z0, x, solver=solver, compile=True)
    assert compiler.frame_count == 1


def test_autocast_reaches_the_cell(compiler):
    cell, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    solver = Picard(max_evals=6, tol=0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        eager = fixed_point(lambda z, x: cell(z) + x, torch.zeros_like(x), x, solver=solver)
        found = fixed_point(lambda z, x: cell(z) + x, torch.zeros_like(x), x, solver=solver, compile=True)
    torch.testing.assert_close(found.z, eager.z, rtol=2e-2, atol=2e-2)
    assert compiler.frame_count == 1


def test_with_a_tolerance_evaluations_are_compiled_and_solves_stop(compiler):
    cell, x = TanhCell(4), torch.randn(6, 4, dtype=torch.float64)
    solver = Anderson(max_evals=30, tol=1e-6)
    with torch.no_grad():
        found, eager = (DEQ(cell, solver=solver, compile=compile).solve(x) for compile in (True, False))
    torch.testing.assert_close(found.z, eager.z)
    assert torch.equal(found.stats.num_evals, eager.stats.num_evals)
    assert found.stats.num_evals.max() < 30


def test_code_is_left_behind_by_copies(compiler):
    layer = DEQ(TanhCell(4), solver=Picard(max_evals=5, tol=0), compile=True)
    x = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(x)
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(twin(x), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch")
@pytest.mark.parametrize("kind", [Picard, Anderson, Broyden])
def test_machine_code_gives_the_same(kind):
    torch._dynamo.reset()
    cell, x = TanhCell(8).float(), torch.randn(16, 8)
    solver = kind(max_evals=8, tol=0)
    gradients = []
    for compile in (False, True):
        cell.zero_grad()
        z = DEQ(cell, solver=solver, compile=compile)(x)
        z.square().sum().backward()
        gradients.append([z.detach(), *(parameter.grad.clone() for parameter in cell.parameters())])
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
