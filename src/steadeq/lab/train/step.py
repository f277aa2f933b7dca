"""One pass of a batch through the network: the loss to differentiate, and all that is recorded about it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...adjoints import AbstractAdjoint
from ...equilibrium import Equilibrium, Status
from ...jacobian import AbstractRegularizer
from ...solvers import AbstractSolver
from ...trees import map_leaves
from ..tasks import AbstractTask
from .adapter import Answer, Carry, ModelAdapter
from .profile import Profile

NAMES = (
    "loss",
    "task_loss",
    "penalty",
    "jacobian_norm",
    "forward_residual",
    "forward_evals",
    "backward_residual",
    "backward_evals",
    "non_finite",
    "bad_samples",
    "penalty_cut",
    "stop",
)
"""What the numbers of a step are, in the order of `StepResult.pack`; the scores of the task follow."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """How one step is made; the same on all processes."""

    step: int
    solver: AbstractSolver
    adjoint: AbstractAdjoint
    regularizer: AbstractRegularizer
    depth: int | None = None
    """Apply the cell this often instead of solving for the equilibrium."""
    num_answers: int = 1
    """How many solves are made, each from the state of the last, and compared with the target."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepResult:
    """What a step gave; numbers are means over the batch."""

    loss: Tensor
    """Task loss plus penalty, with its graph."""
    task_loss: Tensor
    penalty: Tensor
    """gamma times the penalty; zero when it is not applied."""
    jacobian_norm: Tensor | None
    """An estimate of ‖J‖²_F / d, where the regularizer makes one and is applied."""
    scores: Tensor
    """(K,) what the task's metric is made of."""
    equilibria: tuple[Equilibrium, ...]
    """What was solved, one for each answer; empty for a network that solves nothing."""
    carry: Carry | None
    has_bad_state: Tensor
    """Whether some state of a solve, or a buffer such as a running mean, is not finite."""
    num_bad: int
    """Samples that were left out, as their input, state or loss was not finite."""
    num_samples: int
    """Samples with those that were left out."""
    is_cut: bool = False
    """Whether the guard of a closed loop made the penalty smaller than its weight says, on the last step with one."""

    def pack(self, *, must_stop: bool) -> Tensor:
        """Return all numbers in one tensor, so that they travel together; after the backward pass, as it counts too.

        Numbers that do not exist, as without a solve or without a penalty, are NaN.
        """
        like = self.task_loss
        nan = like.new_tensor(math.nan)
        forward = [eq.stats for eq in self.equilibria if eq.stats is not None]
        backward = [eq.backward for eq in self.equilibria if eq.backward is not None]
        values = (
            self.loss.detach(),
            self.task_loss,
            self.penalty,
            nan if self.jacobian_norm is None else self.jacobian_norm,
            # The residual of the last answer, and the cost of all of them.
            forward[-1].residual.mean() if forward else nan,
            torch.stack([stats.num_evals.float().mean() for stats in forward]).sum() if forward else nan,
            backward[-1].residual.mean() if backward else nan,
            torch.stack([stats.num_evals.double().mean() for stats in backward]).sum() if backward else nan,
            self.has_bad_state,
            like.new_tensor(self.num_bad / self.num_samples),
            like.new_tensor(float(self.is_cut)),
            like.new_tensor(float(must_stop)),
        )
        return torch.cat([torch.stack([value.double() for value in values]), self.scores.double()])


def unpack(packed: Tensor, task: AbstractTask) -> dict[str, float]:
    """Return what `StepResult.pack` packed by name, with the task's metric; missing numbers are left out."""
    numbers = packed.tolist()
    named = dict(zip(NAMES, numbers[: len(NAMES)], strict=True))
    may_lack = ("jacobian_norm", "forward_residual", "forward_evals", "backward_residual", "backward_evals")
    values = {name: value for name, value in named.items() if name not in may_lack or not math.isnan(value)}
    values[task.metric] = task.summarize(numbers[len(NAMES) :])
    return values


class TrainStep(nn.Module):
    """The network with its task, as one module, so that the gradients of both losses meet in one backward pass."""

    def __init__(
        self,
        model: nn.Module,
        task: AbstractTask,
        *,
        precision: torch.dtype | None = None,
        profile: Profile | None = None,
    ) -> None:
        super().__init__()
        self.model, self.task, self.precision, self._profile = model, task, precision, profile

    def forward(self, x: Tensor, y: Tensor, settings: StepSettings, carry: Carry | None = None) -> StepResult:
        """Return losses and numbers of a batch, which goes on where the carry comes from.

        Samples whose input, state or loss is not finite are left out, so that they do not cost the others their
        gradients: the batch is sent through the network again without them. Batch normalization spreads a bad state
        over the whole batch; then, as when all samples are bad, nothing is left out, and the caller skips the step.
        """
        kept = torch.arange(len(y), device=y.device)
        is_bad = ~x.reshape(len(x), -1).isfinite().all(dim=1)
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        while True:
            if is_bad.any() and not is_bad.all():
                kept = kept[~is_bad]
            rows = slice(None) if len(kept) == len(y) else kept
            part = None if carry is None else tuple(tensor[rows] for tensor in carry)
            result, is_bad = self._pass(x[rows], y[rows], settings, part)
            if not is_bad.any() or is_bad.all():
                break
            # The samples that are left out must not stay in running means either.
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
        if len(kept) == len(y):
            return result
        return replace(
            result,
            carry=None if result.carry is None else _spread(result.carry, carry, kept, len(y)),
            num_bad=len(y) - len(kept),
            num_samples=len(y),
        )

    def _pass(self, x: Tensor, y: Tensor, settings: StepSettings, carry: Carry | None) -> tuple[StepResult, Tensor]:
        """Return what a pass over some samples gave, and which of them are bad."""
        with torch.autocast(y.device.type, dtype=self.precision, enabled=self.precision is not None):
            answer = self._answer(x, settings, carry)
            losses = self.task.losses(answer.output, y)
            all_losses, equilibria = [losses], [answer.equilibrium]
            while len(all_losses) < settings.num_answers and answer.equilibrium is not None:
                answer = self._answer(x, settings, carry, z0=map_leaves(Tensor.detach, answer.equilibrium.z))
                losses = self.task.losses(answer.output, y)
                all_losses.append(losses)
                equilibria.append(answer.equilibrium)
            is_bad = ~torch.stack(all_losses).detach().isfinite().all(dim=0)
            # A mask may hold -inf.
            spoiled = [~(buffer < math.inf).all() for buffer in self.model.buffers()]
            has_bad_state = torch.stack(spoiled).any() if spoiled else is_bad.new_zeros(())
            if answer.equilibrium is not None and answer.equilibrium.stats is not None:
                lost = answer.equilibrium.stats.status == Status.NON_FINITE
                is_bad, has_bad_state = is_bad | lost, has_bad_state | lost.any()
            task_loss = torch.stack(all_losses).mean()
            term, norm = torch.zeros_like(task_loss), None
            if answer.equilibrium is not None:
                regularizer = settings.regularizer
                term, bare = regularizer.evaluate(answer.equilibrium, step=settings.step, task_loss=task_loss)
                # Others estimate something else.
                norm = bare if regularizer.is_norm else None
            scores = self.task.scores(answer.output, y, losses).detach()
            result = StepResult(
                loss=task_loss + term,
                task_loss=task_loss.detach(),
                penalty=term.detach(),
                jacobian_norm=norm,
                scores=scores.mean(dim=0).reshape(-1),
                equilibria=tuple(eq for eq in equilibria if eq is not None),
                carry=answer.carry,
                has_bad_state=has_bad_state,
                num_bad=0,
                num_samples=len(y),
                is_cut=settings.regularizer.was_cut,
            )
            return result, is_bad

    def _answer(self, x: Tensor, settings: StepSettings, carry: Carry | None, z0: Any = None) -> Answer:
        with nullcontext() if self._profile is None else self._profile.section("solver"):
            return ModelAdapter(self.model)(
                x, carry=carry, z0=z0, solver=settings.solver, adjoint=settings.adjoint, depth=settings.depth
            )


def _spread(carry: Carry, before: Carry | None, kept: Tensor, num_samples: int) -> Carry:
    """Return a carry for all samples, given the one of the samples that were kept; the others keep what they had."""
    whole = []
    for index, part in enumerate(carry):
        rows = part.new_zeros(num_samples, *part.shape[1:])
        if before is not None and before[index].shape == rows.shape:
            rows.copy_(before[index])
        rows[kept] = part
        whole.append(rows)
    return tuple(whole)
