"""The layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..adjoint import AbstractAdjoint, Implicit
from ..equilibrium import fixed_point
from ..solution import Solution
from ..solvers import AbstractSolver, Anderson
from ..transforms import outside_of_graphs


class DEQ(nn.Module):
    """A deep equilibrium layer: one cell, solved to its fixed point z = cell(z, *inputs).

    Gradients follow grad mode: they flow in train and in eval mode alike, and nothing is stored under
    `torch.no_grad()`.

    Args:
        cell: Maps (z, *inputs) to a new z. Whatever it uses per sample (masks, memories) travels as an input.
        solver: How to find the fixed point.
        adjoint: How to differentiate it.
        compact: Whether finished samples leave the batch; see `fixed_point`.
        compile: Compile the cell with `torch.compile` for the evaluations of which no gradient is taken. The adjoint
            and the Jacobian penalty keep using the cell itself, as compiled code has no double backward.

    Example:
        >>> class Cell(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = nn.Linear(4, 4)
        ...     def forward(self, z, x):
        ...         return torch.tanh(self.linear(z) + x)
        >>> layer = DEQ(Cell(), solver=Anderson(max_evals=12, tol=1e-3))
        >>> z, solution = layer(torch.zeros(2, 4), torch.ones(2, 4))
        >>> z.shape, solution.converged.tolist()
        (torch.Size([2, 4]), [True, True])
    """

    def __init__(
        self,
        cell: nn.Module,
        *,
        solver: AbstractSolver = Anderson(),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(),  # noqa: B008 (frozen)
        compact: bool | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.cell = cell
        self.solver = solver
        self.adjoint = adjoint
        # Each new batch size would be compiled anew.
        self.compact = False if compile and compact is None else compact
        self.compile_cell = compile
        self._compiled: list[Callable[..., Any]] = []

    @outside_of_graphs
    def forward(
        self, z0: Any, *inputs: Any, solver: AbstractSolver | None = None, adjoint: AbstractAdjoint | None = None
    ) -> tuple[Any, Solution]:
        """Return the equilibrium and how it was reached.

        Args:
            z0: Where to start.
            *inputs: What the cell takes after the state, batched along dim 0.
            solver: Instead of the layer's own, for this call: another budget or tolerance.
            adjoint: Instead of the layer's own, for this call.
        """
        solution = fixed_point(
            self.cell,
            z0,
            *inputs,
            solver=self.solver if solver is None else solver,
            adjoint=self.adjoint if adjoint is None else adjoint,
            compact=self.compact,
            f_solve=self._fast_cell(),
        )
        return solution.value, solution

    def _fast_cell(self) -> Callable[..., Any] | None:
        if not self.compile_cell:
            return None
        if not self._compiled:
            # In a list, as a submodule would show up twice in the state dict.
            self._compiled.append(torch.compile(self.cell))
        return self._compiled[0]

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled code behind when pickled or copied; it is made again when needed."""
        return {**self.__dict__, "_compiled": []}

    def extra_repr(self) -> str:
        """Show the solver and the adjoint."""
        return f"solver={self.solver}, adjoint={self.adjoint}"
