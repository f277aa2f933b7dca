"""Solves that do not ask the host at every evaluation: the same results, and nothing that makes the host wait."""

import math
from dataclasses import replace

import pytest
import torch
from problems import PROBLEMS, mixed, near_critical
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from steadeq import GMRES, Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point

SOLVERS = [Picard(max_evals=60), Anderson(max_evals=60), Broyden(max_evals=60), NewtonKrylov(max_evals=60)]
WAITING = ("_local_scalar_dense", "item", "equal", "nonzero", "is_nonzero", "masked_select", "_unique2")
"""Operations for which the host waits until the device is done."""


class CountReading(TorchFunctionMode):
    """Counts readings of whole tensors, in `names`; on the CPU these are no operations."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class CountWaiting(TorchDispatchMode):
    """Counts operations that make the host wait, in `names`."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = [i for i in args[1] if i is not None] if name in ("index", "index_put", "index_put_") else []
        if name in WAITING or any(i.dtype in (torch.bool, torch.uint8) for i in indices):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def name_of(solver):
    return type(solver).__name__


def solve(problem, solver, **options):
    with torch.no_grad():
        return fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver, **options)


def assert_same(one, other):
    torch.testing.assert_close(one.z, other.z, rtol=0, atol=0, equal_nan=True)
    for name in ("residual", "num_evals", "status"):
        torch.testing.assert_close(getattr(one.stats, name), getattr(other.stats, name), rtol=0, atol=0)
    # A fixed budget is spent even if all samples ended before.
    num_evals = int(one.stats.num_evals.max())
    torch.testing.assert_close(one.stats.trace[:num_evals], other.stats.trace[:num_evals], rtol=0, atol=0)


@pytest.mark.parametrize("solver", SOLVERS, ids=name_of)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("check_every", [7, 100])
def test_results_counts_and_statuses_do_not_depend_on_when_is_asked(problem, solver, check_every):
    problem = problem(torch.float64, 5)
    solver = replace(solver, tol=1e-8)
    every = solve(problem, solver, compact=False)
    assert_same(solve(problem, replace(solver, check_every=check_every), compact=False), every)


@pytest.mark.parametrize("solver", SOLVERS, ids=name_of)
@pytest.mark.parametrize("check_every", [1, 3, 8])
def test_finished_samples_leave_when_somebody_asks(solver, check_every):
    problem = mixed(torch.float64, 12)
    solver = replace(solver, tol=1e-6)
    every = solve(problem, solver, compact=False)
    found = solve(problem, replace(solver, check_every=check_every), compact=True)
    torch.testing.assert_close(found.z, every.z, rtol=1e-9, atol=1e-12)
    assert torch.equal(found.stats.num_evals, every.stats.num_evals)
    assert torch.equal(found.stats.status, every.stats.status)


def faulty(z, limit, rate):
    """A contraction that returns NaN once the state is beyond a sample's limit, and finite numbers from NaN."""
    return torch.where(z > limit, torch.nan, rate * z.nan_to_num() + 1)


LIMIT = torch.tensor([[9.0], [1.2], [9.0], [0.5]], dtype=torch.float64).expand(4, 3)
RATE = torch.tensor([[0.5], [0.5], [0.0], [0.5]], dtype=torch.float64)
FAILED, DONE = Status.NON_FINITE, Status.CONVERGED
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("f", "z0", "inputs", "solver", "statuses"),
    [
        *(
            (faulty, torch.zeros(4, 3), (LIMIT, RATE), replace(solver, max_evals=12, tol=tol), {1: FAILED, 2: DONE})
            for solver in SOLVERS[:3]
            for tol in (0.0, 1e-4)
        ),
        (lambda z: z @ TURN.T, torch.ones(2, 2), (), Picard(max_evals=100, tol=1e-6), {0: Status.STAGNATED}),
        (lambda z, x: 0.5 * z + x, torch.zeros(4, 1), (RATE,), Picard(max_evals=60, patience=3), {0: DONE, 3: DONE}),
    ],
)
def test_failure_stagnation_and_patience_are_the_same(f, z0, inputs, solver, statuses):
    one, other = (
        fixed_point(f, z0.double(), *inputs, solver=replace(solver, check_every=n), compact=False) for n in (1, 5)
    )
    assert_same(other, one)
    for sample, status in statuses.items():
        assert other.stats.status[sample] == status


@pytest.mark.parametrize("tol", [0.0, 1e-10])
@pytest.mark.parametrize("memory", [None, 4])
def test_gmres_gives_the_same(tol, memory):
    generator = torch.Generator().manual_seed(0)
    matrix = 0.9 * torch.randn(5, 12, 12, generator=generator, dtype=torch.float64) / 12**0.5
    # A multiple of the identity has a space of one dimension, a zero gradient none.
    matrix[1] = 0.5 * torch.eye(12)
    b = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    b[2] = 0
    operator = lambda u: torch.einsum("bij,bj->bi", matrix, u)  # noqa: E731
    solver = GMRES(max_evals=20, tol=tol, memory=memory)
    u, stats = solver.solve_linear(operator, b)
    other, other_stats = replace(solver, check_every=6).solve_linear(operator, b)
    torch.testing.assert_close(other, u, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(other_stats.residual, stats.residual, rtol=1e-6, atol=1e-15)
    assert torch.equal(other_stats.num_evals, stats.num_evals)
    assert torch.equal(other_stats.status, stats.status)


@pytest.mark.parametrize("solver", SOLVERS[:3], ids=name_of)
def test_a_fixed_budget_never_makes_the_host_wait(solver):
    problem = mixed(torch.float32, 9)
    with CountWaiting() as counted, CountReading(counted.names):
        solve(problem, replace(solver, max_evals=20, tol=0, check_every=4))
    assert counted.names == []


@pytest.mark.parametrize("solver", SOLVERS[:3], ids=name_of)
def test_on_the_cpu_a_fixed_budget_reads_memory_and_asks_nothing(solver):
    # So slow that no sample is solved to the last digit, which would be settled by its index.
    problem = near_critical(torch.float64, 9)
    with CountWaiting() as counted:
        solve(problem, replace(solver, max_evals=20, tol=0))
    assert counted.names == []


@pytest.mark.parametrize("solver", SOLVERS[:3], ids=name_of)
def test_with_a_tolerance_the_host_waits_only_where_it_asks(solver):
    problem = near_critical(torch.float64, 9)
    solver = replace(solver, max_evals=20, tol=1e-20, check_every=5)
    with CountWaiting() as counted, CountReading(counted.names):
        eq = solve(problem, solver, compact=False)
    assert eq.stats.num_evals.max() == 20
    # After 5, 10 and 15 evaluations, and for the length of the trace.
    assert len(counted.names) == 3 + 1


@pytest.mark.parametrize("solver", SOLVERS[:3], ids=name_of)
def test_a_cell_whose_samples_stop_together_is_never_asked_about(solver):
    x, num_waits = torch.linspace(0.5, 0.51, 4, dtype=torch.float64)[:, None], []
    solver = replace(solver, tol=1e-3, check_every=4)
    for _ in range(3):
        with torch.no_grad(), CountWaiting() as counted, CountReading(counted.names):
            eq = fixed_point(lambda z, x: 0.5 * torch.cos(z) + x, torch.zeros_like(x), x, solver=solver, compact=False)
        assert len(set(eq.stats.num_evals.tolist())) == 1
        num_waits.append(len(counted.names))
    num_evals = int(eq.stats.num_evals.max())
    assert num_waits == [math.ceil(num_evals / 4) + 1] * 3


def test_a_backward_solve_of_a_fixed_budget_asks_once():
    matrix = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)) / 8
    with CountWaiting() as counted, CountReading(counted.names):
        GMRES(max_evals=12, tol=0, check_every=4).solve_linear(lambda u: u @ matrix, torch.ones(3, 16))
    assert counted.names == ["tolist"]
