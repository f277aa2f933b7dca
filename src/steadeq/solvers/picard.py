"""Plain fixed-point iteration."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .._internal.validation import check_step_length
from .base import AbstractSolver, Rule


@dataclass(frozen=True, kw_only=True)
class Picard(AbstractSolver):
    """Damped fixed-point iteration, z <- z + damping (f(z) - z).

    The cheapest step and no memory. It converges only where the spectral radius of (1 - damping) I + damping J is
    below 1, and linearly at that rate; Anderson is rarely slower.

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> fixed_point(torch.cos, torch.zeros(1, 1), solver=Picard(max_evals=100, tol=1e-6)).z
        tensor([[0.7391]])
    """

    damping: float = 1.0
    """Length of the step from z towards f(z), in (0, 1]; 1 replaces z by f(z)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step_length("damping", self.damping)

    def start(self, z: Tensor, eps: float) -> Rule:
        """Return a fresh rule."""
        return _PicardRule(self.damping)


class _PicardRule(Rule):
    def __init__(self, damping: float) -> None:
        self._damping = damping

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None) -> Tensor:
        return fz if self._damping == 1 else z + self._damping * g

    def select(self, rows: Tensor) -> None:
        pass
