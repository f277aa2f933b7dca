"""What every equilibrium network has: an injection, a layer solved to its fixed point, and a read-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..adjoint import AbstractAdjoint
from ..nn import DEQ, computed_once
from ..solution import Solution
from ..solvers import AbstractSolver


@dataclass(frozen=True, kw_only=True, eq=False)
class Equilibrium:
    """A solved layer, with all that the Jacobian penalty and the spectra need."""

    z: Any
    """The state, part of the graph if gradients are on."""
    inputs: tuple[Any, ...]
    """What the cell takes after the state."""
    solution: Solution
    """How the state was reached."""


class AbstractEquilibriumModel(nn.Module, ABC):
    """A network whose depth is one equilibrium layer, `layer`."""

    layer: DEQ

    @abstractmethod
    def inject(self, x: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return the state to start from and what the cell takes after it."""

    @abstractmethod
    def read_out(self, z: Any) -> Tensor:
        """Return the output at a state."""

    def answer(self, x: Any, z: Any, inputs: tuple[Any, ...]) -> Any:
        """Return all that the network says: the output, for most.

        Args:
            x: The batch of inputs.
            z: The state that was reached.
            inputs: What the cell took after it.
        """
        return self.read_out(z)

    def solve(
        self, x: Any, *, solver: AbstractSolver | None = None, adjoint: AbstractAdjoint | None = None
    ) -> Equilibrium:
        """Return the equilibrium of the layer.

        Args:
            x: A batch of inputs.
            solver: Instead of the layer's own.
            adjoint: Instead of the layer's own.
        """
        z0, inputs = self.inject(x)
        with computed_once(self.layer.cell):
            z, solution = self.layer(z0, *inputs, solver=solver, adjoint=adjoint)
        return Equilibrium(z=z, inputs=inputs, solution=solution)

    def unroll(self, x: Any, depth: int) -> tuple[Any, tuple[Any, ...]]:
        """Apply the cell a number of times from its start, as an explicit network with tied layers would.

        Args:
            x: A batch of inputs.
            depth: How often.

        Returns:
            The last state, and what the cell takes after the state.
        """
        z, inputs = self.inject(x)
        with computed_once(self.layer.cell):
            for _ in range(depth):
                z = self.layer.cell(z, *inputs)
        return z, inputs

    def forward(
        self, x: Any, *, solver: AbstractSolver | None = None, adjoint: AbstractAdjoint | None = None
    ) -> tuple[Any, Solution]:
        """Return the output and how its equilibrium was reached.

        Args:
            x: A batch of inputs.
            solver: Instead of the layer's own.
            adjoint: Instead of the layer's own.
        """
        equilibrium = self.solve(x, solver=solver, adjoint=adjoint)
        return self.answer(x, equilibrium.z, equilibrium.inputs), equilibrium.solution
