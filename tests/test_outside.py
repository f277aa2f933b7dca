"""Solvers and adjoints that are written outside of the package work as those inside of it do.

Nothing here uses a name that is not public.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from steadeq import DEQ, ConvergenceWarning, Equilibrium, Implicit, JacobianRegularizer, SolveStats, Status, fixed_point
from steadeq.adjoints import AbstractLinearAdjoint
from steadeq.jacobian import AbstractRegularizer, AbstractSchedule, jacobian_penalty
from steadeq.solvers import AbstractLinearSolver, AbstractSolver, Evaluation


@dataclass(frozen=True, kw_only=True)
class Heavy(AbstractSolver):
    """Damped iteration with momentum."""

    damping: float = 0.8
    momentum: float = 0.1

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> Tensor:
        return z

    def step(self, state: Tensor, at: Evaluation) -> tuple[Tensor, Tensor]:
        return at.z, at.z + self.damping * at.g + self.momentum * (at.z - state)


@dataclass(frozen=True, kw_only=True)
class Neumann(AbstractLinearSolver):
    """The sum of a series, of as many terms as the budget allows."""

    def solve_linear(self, operator, b):
        u, trace = b, []
        for _ in range(self.max_evals):
            image = operator(u) + b
            trace.append(torch.linalg.vector_norm(image - u, dim=1) / torch.linalg.vector_norm(b, dim=1))
            u = image
        residual = trace[-1]
        status = torch.where(residual <= self.tol, int(Status.CONVERGED), int(Status.MAX_EVALS))
        return u, SolveStats(
            residual=residual,
            num_evals=torch.full_like(status, self.max_evals),
            status=status,
            trace=torch.stack(trace),
        )


@dataclass(frozen=True)
class Doubled(AbstractLinearAdjoint):
    """Twice the gradient of one evaluation."""

    def cotangent(self, vjp, g, state):
        return 2 * g, SolveStats.not_measured(g.shape[0], 0, like=g)


class Cell(nn.Module):
    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        weight = torch.randn(dim, dim, dtype=torch.float64)
        self.weight = nn.Parameter(0.6 * weight / torch.linalg.matrix_norm(weight, 2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.weight.T + x)


TIGHT = Heavy(max_evals=300, tol=1e-12)


@pytest.fixture
def cell():
    return Cell()


@pytest.fixture
def x():
    return torch.randn(16, 4, dtype=torch.float64, requires_grad=True)


def unrolled(cell, x):
    z = torch.zeros_like(x)
    for _ in range(200):
        z = cell(z, x)
    return z


@pytest.mark.parametrize("compact", [False, True])
def test_a_solver(cell, x, compact):
    with torch.no_grad():
        x[::2] *= 20
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, compact=compact)
    assert eq.stats.converged.all()
    # Samples of different difficulty leave the rule by themselves.
    assert eq.stats.num_evals.min() < eq.stats.num_evals.max()
    torch.testing.assert_close(eq.z, unrolled(cell, x))


def test_a_solver_has_its_fields_checked_and_printed():
    with pytest.raises(ValueError, match="max_evals is 0"):
        Heavy(max_evals=0)
    assert repr(Heavy(tol=0.1)) == (
        "Heavy(max_evals=30, tol=0.1, check_every=None, patience=1, causal=False, damping=0.8, momentum=0.1)"
    )


@pytest.mark.parametrize("backward", [Neumann(max_evals=200, tol=1e-9), TIGHT], ids=["linear", "fixed_point"])
def test_a_linear_solver_of_the_backward_pass(cell, x, backward):
    eq = DEQ(cell, solver=TIGHT, adjoint=Implicit(backward)).solve(x)
    actual = torch.autograd.grad(eq.z.square().sum(), [cell.weight, x])
    assert eq.backward.converged.all()
    expected = torch.autograd.grad(unrolled(cell, x).square().sum(), [cell.weight, x])
    torch.testing.assert_close(actual, expected)


def test_a_linear_solver_takes_part_in_second_derivatives(cell, x):
    results = []
    for z in (fixed_point(cell, x, x, solver=TIGHT, adjoint=Implicit(Neumann(max_evals=200))).z, unrolled(cell, x)):
        (slope,) = torch.autograd.grad(z.square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(slope.square().sum(), [cell.weight, x]))
    torch.testing.assert_close(*results)


def test_a_linear_solver_that_falls_short_warns(cell, x):
    eq = DEQ(cell, solver=TIGHT, adjoint=Implicit(Neumann(max_evals=2, tol=1e-9))).solve(x)
    with pytest.warns(ConvergenceWarning, match=r"backward solve by Neumann\(max_evals=2.*MAX_EVALS"):
        eq.z.sum().backward()


def test_an_adjoint(cell, x):
    eq = DEQ(cell, solver=TIGHT, adjoint=Doubled()).solve(x)
    (actual,) = torch.autograd.grad(eq.z.sum(), cell.weight)
    (expected,) = torch.autograd.grad(cell(eq.z.detach(), x).sum(), cell.weight)
    torch.testing.assert_close(actual, 2 * expected)
    assert eq.backward.status.tolist() == [Status.NOT_MEASURED] * 16


@dataclass(frozen=True, kw_only=True)
class EverySecond(AbstractSchedule):
    """The weight on even steps, and nothing on odd ones."""

    def weight(self, initial, step, state=()):
        return initial if step % 2 == 0 else 0.0

    def is_active(self, initial):
        return initial > 0


@dataclass(kw_only=True)
class Decay(AbstractRegularizer):
    """The mean square of the state's image, as a penalty of one's own."""

    scale: float = 1.0

    def penalty(self, eq, *, generator=None):
        return self.scale * eq.f(eq.z.detach(), *eq.inputs).square().mean()


def test_a_schedule(cell, x):
    regularizer = JacobianRegularizer(weight=2.0, schedule=EverySecond())
    eq = DEQ(cell, solver=TIGHT).solve(x)
    bare = jacobian_penalty(eq, generator=torch.Generator().manual_seed(0))
    terms = [regularizer(eq, step=step, generator=torch.Generator().manual_seed(0)) for step in (0, 1)]
    torch.testing.assert_close(terms[0], 2 * bare)
    assert terms[1] == 0
    assert regularizer.is_active


def test_a_regularizer():
    eq = Equilibrium.at(lambda z: 3 * z, torch.ones(2, 2))
    regularizer = Decay(weight=0.5, scale=2.0).for_run(num_steps=10, steps_per_epoch=5, seed=3)
    assert isinstance(regularizer, Decay)
    term, bare = regularizer.evaluate(eq, step=0)
    assert (term.item(), bare.item()) == (9.0, 18.0)
