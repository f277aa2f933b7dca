"""One way to call all kinds of networks, and the carry from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...adjoints import AbstractAdjoint, Unrolled
from ...equilibrium import Equilibrium
from ...models import Carry
from ...solvers import AbstractSolver, Picard
from .distributed import Process


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a network returned for a batch."""

    output: Any
    """What the task's loss takes."""
    equilibrium: Equilibrium | None
    """The equilibrium, for networks that solve for one."""
    carry: Carry | None
    """What the network needs to go on with the batch after this one, for networks that do."""


class ModelAdapter:
    """A network as training and evaluation see it.

    Any module works: `model(x)` returns its output. One with a method `solve`, such as all equilibrium models, is
    called as `model.solve(x, solver=..., adjoint=...)` and returns output and `Equilibrium`. One with the attribute
    `takes_carry` takes an argument `carry` after x, and its output has an attribute `carry`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self.has_equilibrium = callable(getattr(model, "solve", None))
        """Whether the network solves for an equilibrium."""
        self._takes_carry = bool(getattr(model, "takes_carry", False))
        self.can_go_on = self.has_equilibrium and not self._takes_carry
        """Whether a solve of the network can start at a given state."""

    def __call__(
        self,
        x: Tensor,
        *,
        carry: Carry | None = None,
        z0: Any = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
        depth: int | None = None,
    ) -> Answer:
        """Return what the network answers to a batch, which goes on where the carry comes from.

        A solve starts at z0, or where the network starts it. Solver and adjoint are by default the network's own; with
        a depth, the cell is applied this often instead.
        """
        context: dict[str, Any] = {"carry": carry} if self._takes_carry else {}
        if z0 is not None:
            context["z0"] = z0
        if not self.has_equilibrium:
            output, equilibrium = self._model(x, **context), None
        elif depth is None:
            output, equilibrium = self._model.solve(x, **context, solver=solver, adjoint=adjoint)
        elif hasattr(self._model, "unroll"):
            output, equilibrium = self._model.unroll(x, depth, **context)
        else:
            # One evaluation more than the depth: the last one measures the residual of the state.
            plain = Picard(max_evals=depth + 1, tol=0)
            output, equilibrium = self._model.solve(x, **context, solver=plain, adjoint=Unrolled())
        return Answer(output=output, equilibrium=equilibrium, carry=output.carry if self._takes_carry else None)


class CarryStore:
    """The carry of each part of a batch; empty for models and data without a carry.

    What a step leaves behind is proposed first, and kept only if the step was good: a state that is not finite would
    spoil all steps after it.
    """

    def __init__(self, process: Process, *, num_parts: int) -> None:
        self._process = process
        self.kept: list[Carry | None] = [None] * num_parts
        self._proposed: list[Carry | None] = [None] * num_parts

    def clear(self) -> None:
        """Forget the carry, as at the beginning of a text."""
        self.kept = [None] * len(self.kept)

    def propose(self, index: int, carry: Carry | None) -> None:
        """Take what a step leaves behind for a part."""
        self._proposed[index] = carry

    def keep(self) -> None:
        """Remember what was proposed."""
        self.kept = list(self._proposed)

    def state_dict(self) -> list[Tensor] | None:
        """Return the carry of the whole batch, over all parts of all processes; all of them must call this."""
        kept = [carry for carry in self.kept if carry is not None]
        if not kept:
            return None
        return [self._process.concatenate(torch.cat(parts)).cpu() for parts in zip(*kept, strict=True)]

    def load_state_dict(self, state: list[Tensor] | None) -> None:
        """Take back what `state_dict` returned, each part its own rows."""
        if state is None:
            self.clear()
            return
        num_parts = len(self.kept)
        first = self._process.rank * num_parts
        shares = [part.to(self._process.device).chunk(num_parts * self._process.world_size) for part in state]
        self.kept = [tuple(share[first + index] for share in shares) for index in range(num_parts)]
