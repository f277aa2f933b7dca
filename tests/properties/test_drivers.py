"""All ways to run a solve give the same states, counts and statuses.

Eager code asks the host after each evaluation; on accelerators it asks now and then, and works by masks in between;
compiled code works by masks, a few steps at a time; an exported program asks nothing at all.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from properties.cells import Case, case, flatten, norms
from torch import Tensor, nn

from steadeq import Anderson, Broyden, Picard, SolveStats, fixed_point
from steadeq._internal.trees import Layout
from steadeq.solvers import AbstractSolver, Evaluation
from steadeq.solvers._loop import Options
from steadeq.solvers._loop import solve as solve_matrix

Found = tuple[Any, SolveStats]


class Momentum(AbstractSolver):
    """A method of somebody else: damped iteration that goes on in its last direction."""

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> Tensor:
        return z

    def step(self, state: Tensor, at: Evaluation) -> tuple[Tensor, Tensor]:
        return at.z, at.z + 0.8 * at.g + 0.1 * (at.z - state)


# Budgets that are spent, and tolerances that samples reach one after the other.
SETTINGS = [{"max_evals": 7, "tol": 0}, {"max_evals": 24, "tol": 2e-3}]
METHODS = {
    "picard": Picard,
    "anderson": Anderson,
    "broyden": Broyden,
    "causal picard": functools.partial(Picard, causal=True),
    "causal anderson": functools.partial(Anderson, causal=True),
    "causal broyden": functools.partial(Broyden, causal=True),
    "momentum": Momentum,
    "patient": functools.partial(Anderson, patience=2),
}
CELLS = [("mlp", "fresh"), ("damped", "trained"), ("mdeq", "fresh"), ("post-ln", "trained")]
PAIRS = [(*cell, method) for cell in CELLS for method in METHODS if cell[0] == "post-ln" or "causal" not in method]


def eager(cell: Case, solver: AbstractSolver) -> Found:
    eq = fixed_point(cell.f, cell.z0, *cell.inputs, solver=solver, compact=False)
    return eq.z, eq.stats


def masked(cell: Case, solver: AbstractSolver) -> Found:
    return eager(cell, type(solver)(**{**vars(solver), "check_every": 5}))


def compiled(cell: Case, solver: AbstractSolver) -> Found:
    eq = fixed_point(cell.f, cell.z0, *cell.inputs, solver=solver, compile=True)
    return eq.z, eq.stats


class Program(nn.Module):
    """A solve as a module, for `torch.export`."""

    def __init__(self, cell: Case, solver: AbstractSolver) -> None:
        super().__init__()
        self.f, self.solver = cell.f, type(solver)(**{**vars(solver), "check_every": solver.max_evals})

    def forward(self, z0: Any, *inputs: Any) -> Any:
        layout = Layout(z0)
        z, stats, _ = solve_matrix(
            self.f, layout.pack(z0), inputs, solver=self.solver, layout=layout, options=Options()
        )
        return layout.unpack(z), stats.residual, stats.num_evals, stats.status


def exported(cell: Case, solver: AbstractSolver) -> Found:
    program = torch.export.export(Program(cell, solver), (cell.z0, *cell.inputs))
    z, residual, num_evals, status = program.module()(cell.z0, *cell.inputs)
    return z, SolveStats(residual=residual, num_evals=num_evals, status=status, trace=residual.new_empty(0))


DRIVERS = (compiled, exported)


@pytest.fixture
def compiler(monkeypatch):
    """Compile with everything but the last step, the making of machine code."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    yield
    torch._dynamo.reset()


SLOW = [(*cell, method, driver) for *cell, method in PAIRS if cell[0] in ("mlp", "post-ln") for driver in DRIVERS]


@pytest.mark.parametrize(
    ("name", "stage", "method", "driver"),
    [
        *((*pair, masked) for pair in PAIRS),
        *(pytest.param(*arguments, marks=pytest.mark.slow) for arguments in SLOW),
    ],
)
def test_every_driver_gives_the_same(name, stage, method, driver: Callable[..., Found], compiler):
    cell = case(name, stage)
    # An exported program spends its budget.
    for settings in SETTINGS[:1] if driver is exported else SETTINGS:
        solver = METHODS[method](**settings)
        with torch.no_grad():
            z, stats = eager(cell, solver)
            other_z, other = driver(cell, solver)
        assert torch.equal(other.status, stats.status), settings
        assert torch.equal(other.num_evals, stats.num_evals), settings
        torch.testing.assert_close(other.residual, stats.residual, rtol=1e-4, atol=1e-10)
        # Sums in another order part by rounding, which steps magnify.
        assert (norms(flatten(other_z) - flatten(z)) <= 1e-6 * norms(flatten(z))).all(), settings


def test_samples_reach_the_tolerance_one_after_the_other():
    """What is compared has samples that stop and samples that go on."""
    counts = []
    for name, stage, method in PAIRS:
        cell = case(name, stage)
        with torch.no_grad():
            counts.append(eager(cell, METHODS[method](**SETTINGS[1]))[1].num_evals)
    assert sum(len(set(count.tolist())) > 1 for count in counts) >= len(PAIRS) // 3
