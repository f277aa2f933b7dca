"""The gradient from the inverse estimate of the forward solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..equilibrium import SolveStats
from ..solvers import AbstractSolver, Broyden
from ..solvers.broyden import apply_transposed
from .base import AbstractLinearAdjoint


@dataclass(frozen=True)
class Shine(AbstractLinearAdjoint):
    """The gradient from the inverse estimate of the forward Broyden solve (Ramzi et al., 2022).

    It costs no vector-Jacobian product. A sample whose gradient the estimate would lengthen by more than `max_stretch`
    gets the gradient of `OneStep` instead. It needs `solver=Broyden(...)` and keeps the whole history of the solve.
    """

    max_stretch: float = 1.3
    """Largest factor by which the estimated inverse may lengthen a sample's gradient; beyond it that sample uses the
    gradient of OneStep."""

    keeps_rows = True

    def __post_init__(self) -> None:
        if not self.max_stretch > 0:
            raise ValueError(f"max_stretch is {self.max_stretch!r}; it must be > 0.")

    def check_solver(self, solver: AbstractSolver) -> None:
        """Accept Broyden's method only."""
        if not isinstance(solver, Broyden):
            raise ValueError(f"adjoint=Shine() needs solver=Broyden(...), not {type(solver).__name__}.")

    def forward_solver(self, solver: AbstractSolver) -> AbstractSolver:
        """Return the Broyden solver with room for its whole history."""
        self.check_solver(solver)
        assert isinstance(solver, Broyden)
        return replace(solver, memory=None, causal=False)

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, state: Any) -> tuple[Tensor, SolveStats]:
        """Apply the transposed inverse estimate."""
        u = apply_transposed(state, g)
        stretch = torch.linalg.vector_norm(u, dim=1) / torch.linalg.vector_norm(g, dim=1)
        u = torch.where((stretch <= self.max_stretch)[:, None], u, g)
        return u, SolveStats.not_measured(g.shape[0], 0, like=g)
