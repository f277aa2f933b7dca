"""The exact gradient, by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..equilibrium import SolveStats
from ..solvers import GMRES, AbstractLinearSolver
from .base import AbstractLinearAdjoint, warn_if_short


@dataclass(frozen=True)
class Implicit(AbstractLinearAdjoint):
    """The exact gradient by the implicit function theorem (Eq. 1): solve u = Jᵀu + g at the equilibrium.

    Memory does not depend on the number of evaluations, forward or backward. A second derivative is exact too, through
    a second implicit solve, as long as f closes over nothing but leaves (pass other tensors as inputs).

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> x = torch.tensor([[1.0]], requires_grad=True)
        >>> z = fixed_point(lambda z, x: 0.5 * z + x, torch.zeros(1, 1), x).z  # z = 2 x
        >>> z.sum().backward()
        >>> x.grad
        tensor([[2.]])
    """

    solver: AbstractLinearSolver = GMRES()  # noqa: RUF009 (frozen)
    """Solver of the linear system of the backward pass: GMRES, which stops on its residual |r| / |g|, or any
    fixed-point solver."""

    is_exact = True

    def __post_init__(self) -> None:
        if not isinstance(self.solver, AbstractLinearSolver):
            raise TypeError(f"solver is {self.solver!r}; it must be a steadeq solver, such as GMRES() or Anderson().")

    def with_solver(self, change: Callable[[AbstractLinearSolver], AbstractLinearSolver]) -> Implicit:
        """Return the adjoint with another solver."""
        return Implicit(change(self.solver))

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, state: Any) -> tuple[Tensor, SolveStats]:
        """Solve the adjoint system."""
        u, stats = self.solver.solve_linear(vjp, g)
        warn_if_short("backward", self.solver, stats)
        return u, stats
