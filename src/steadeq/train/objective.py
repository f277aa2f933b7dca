"""One pass of a batch through the network: the loss to differentiate, and all that is recorded about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..adjoint import AbstractAdjoint
from ..models import AbstractEquilibriumModel, AbstractExplicitModel, Predictions, Segment
from ..models.transformer import Memory
from ..regularizer import JacobianRegularizer
from ..solution import Solution, Status
from ..solvers import AbstractSolver
from ..state import leaves
from .task import AbstractTask

PACKED = (
    "loss",
    "task_loss",
    "penalty",
    "jacobian_norm",
    "score",
    "forward_residual",
    "forward_evals",
    "backward_residual",
    "backward_evals",
    "non_finite",
    "stop",
)
"""What `Outcome.pack` holds."""
MAY_LACK = ("jacobian_norm", "forward_residual", "forward_evals", "backward_residual", "backward_evals")
"""What may be NaN: there is no such thing without a solve, or without a penalty."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one step is made; the same on all processes."""

    step: int
    solver: AbstractSolver
    adjoint: AbstractAdjoint
    regularizer: JacobianRegularizer
    unroll: int | None = None
    """Apply the cell this often instead of solving for the equilibrium."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Scalars are means over the batch."""

    loss: Tensor
    """Task loss plus penalty, with its graph."""
    task_loss: Tensor
    penalty: Tensor
    """gamma times the penalty; zero when it is not applied."""
    jacobian_norm: Tensor
    """The penalty without its weight, an estimate of ‖J‖²_F / d; NaN when it is not applied."""
    score: Tensor
    residual: Tensor
    """NaN for a network without an equilibrium."""
    num_evals: Tensor
    """NaN for a network without an equilibrium."""
    solution: Solution | None
    """None if there was no solve."""
    memory: Memory | None
    """What a language model needs to go on."""

    def pack(self, *, must_stop: bool) -> Tensor:
        """Return all numbers in one tensor, so that they travel together; after the backward pass, as it counts too."""
        like = self.task_loss
        nan = like.new_tensor(math.nan)
        backward = None if self.solution is None else self.solution.backward
        values = (
            self.loss.detach(),
            self.task_loss,
            self.penalty,
            self.jacobian_norm,
            self.score,
            self.residual,
            self.num_evals,
            nan if backward is None else backward.residual.mean(),
            nan if backward is None else backward.num_evals.double().mean(),
            like.new_zeros(()) if self.solution is None else (self.solution.status == Status.NON_FINITE).any(),
            like.new_tensor(float(must_stop)),
        )
        return torch.stack([value.double() for value in values])


class Objective(nn.Module):
    """The network with its task, as one module, so that the gradients of both losses meet in one backward pass.

    Args:
        model: The network.
        task: What it is trained for.
        precision: Of autocast, or None for none.
    """

    def __init__(
        self,
        model: AbstractEquilibriumModel | AbstractExplicitModel,
        task: AbstractTask,
        *,
        precision: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.model, self.task, self.precision = model, task, precision

    def forward(self, x: Tensor | Segment, y: Tensor, plan: Plan) -> Outcome:
        """Return losses and statistics of a batch."""
        with torch.autocast(y.device.type, dtype=self.precision, enabled=self.precision is not None):
            if isinstance(self.model, AbstractExplicitModel):
                output = self.model.output(x)
                nothing = torch.full((), math.nan, device=y.device)
                return self._outcome(output, y, penalty=None, residual=nothing, num_evals=nothing, solution=None)
            if plan.unroll is None:
                equilibrium = self.model.solve(x, solver=plan.solver, adjoint=plan.adjoint)
                z, inputs, solution = equilibrium.z, equilibrium.inputs, equilibrium.solution
                residual, num_evals = solution.residual.mean(), solution.num_evals.float().mean()
            else:
                z, inputs, residual = _unroll(self.model, x, plan.unroll)
                solution, num_evals = None, residual.new_tensor(float(plan.unroll))
            output = self.model.answer(x, z, inputs)
            cell, regularizer = self.model.layer.cell, plan.regularizer

            def penalty(task_loss: Tensor) -> tuple[Tensor, Tensor | None]:
                return regularizer.split(cell, z, *inputs, step=plan.step, task_loss=task_loss)

            return self._outcome(output, y, penalty=penalty, residual=residual, num_evals=num_evals, solution=solution)

    def _outcome(
        self,
        output: Any,
        y: Tensor,
        *,
        penalty: Callable[[Tensor], tuple[Tensor, Tensor | None]] | None,
        residual: Tensor,
        num_evals: Tensor,
        solution: Solution | None,
    ) -> Outcome:
        losses = self.task.losses(output, y)
        task_loss = losses.mean()
        term, norm = (torch.zeros_like(task_loss), None) if penalty is None else penalty(task_loss)
        return Outcome(
            loss=task_loss + term,
            task_loss=task_loss.detach(),
            penalty=term.detach(),
            jacobian_norm=torch.full_like(term, math.nan) if norm is None else norm,
            score=self.task.scores(output, y, losses).detach().mean(),
            residual=residual,
            num_evals=num_evals,
            solution=solution,
            memory=output.memory if isinstance(output, Predictions) else None,
        )


def _unroll(model: AbstractEquilibriumModel, x: Tensor | Segment, depth: int) -> tuple[Any, tuple[Any, ...], Tensor]:
    """Return the state after so many applications of the cell, its inputs, and how much the last one still moved it."""
    previous, inputs = model.unroll(x, depth - 1)
    z = model.layer.cell(previous, *inputs)
    with torch.no_grad():
        moved = sum(
            (a.float() - b.float()).flatten(1).square().sum(1) for a, b in zip(leaves(z), leaves(previous), strict=True)
        )
        size = sum(a.float().flatten(1).square().sum(1) for a in leaves(z))
        residual = (torch.as_tensor(moved) / torch.as_tensor(size)).sqrt().mean()
    return z, inputs, residual
