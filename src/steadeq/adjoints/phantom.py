"""Truncated gradients: one term of the Neumann series, or a few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._internal.validation import check_count, check_step_length
from ..equilibrium import SolveStats
from .base import AbstractLinearAdjoint


@dataclass(frozen=True)
class OneStep(AbstractLinearAdjoint):
    """The gradient of one evaluation at the equilibrium, u = g (Jacobian-free backpropagation).

    It costs nothing and is biased: the part of the gradient that flows back through J is missing.
    """

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, state: Any) -> tuple[Tensor, SolveStats]:
        """Return g itself."""
        return g, SolveStats.not_measured(g.shape[0], 0, like=g)


@dataclass(frozen=True)
class Phantom(AbstractLinearAdjoint):
    """The phantom gradient: `num_steps` damped iterations of u = Jᵀu + g, in its memory-free Neumann form.

    In cost and bias, it lies between `OneStep` (num_steps=1, damping=1) and `Implicit` (many steps).
    """

    num_steps: int = 5
    """Number of terms of the Neumann series; each but the first costs one vector-Jacobian product."""
    damping: float = 0.5
    """Length of each step of the backward iteration, in (0, 1]; 1 is undamped."""

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        check_step_length("damping", self.damping)

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, state: Any) -> tuple[Tensor, SolveStats]:
        """Sum the series."""
        u = self.damping * g
        for _ in range(self.num_steps - 1):
            u = torch.lerp(u, vjp(u) + g, self.damping)
        return u, SolveStats.not_measured(g.shape[0], self.num_steps - 1, like=g)
