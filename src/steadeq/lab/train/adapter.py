"""One way to call all kinds of networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...adjoints import AbstractAdjoint, Unrolled
from ...equilibrium import Equilibrium
from ...solvers import AbstractSolver, Picard

Carry = tuple[Tensor, ...]
"""What a model hands on from one segment of a text to the next, each part (B, ...) and without a graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a network returned for a batch."""

    output: Any
    """What the task's loss takes."""
    equilibrium: Equilibrium | None
    """What was solved, for networks that solve something."""
    carry: Carry | None
    """What the network needs to go on with the batch after this one, for networks that do."""


class ModelAdapter:
    """A network as training and evaluation see it.

    Any module will do: `model(x)` returns its output. One with a method `solve`, such as all equilibrium models, is
    called as `model.solve(x, solver=..., adjoint=...)` and returns output and `Equilibrium`. One with the attribute
    `takes_carry` takes an argument `carry` after x, and its output has an attribute `carry`.

    Args:
        model: The network.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self.has_equilibrium = callable(getattr(model, "solve", None))
        """Whether the network solves for an equilibrium."""
        self._takes_carry = bool(getattr(model, "takes_carry", False))

    def __call__(
        self,
        x: Tensor,
        *,
        carry: Carry | None = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
        depth: int | None = None,
    ) -> Answer:
        """Return what the network answers to a batch.

        Args:
            x: The batch.
            carry: What it returned for the batch before, if this one goes on there.
            solver: How to find the equilibrium; by default the network's own.
            adjoint: How to differentiate it; by default the network's own.
            depth: Apply the cell this often instead of solving for the equilibrium.
        """
        context: dict[str, Any] = {"carry": carry} if self._takes_carry else {}
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
