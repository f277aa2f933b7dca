"""Plain fixed-point iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .._internal.validation import check_step_length
from .base import AbstractSolver, Evaluation


@dataclass(frozen=True, kw_only=True)
class Picard(AbstractSolver):
    """Damped fixed-point iteration, z <- z + damping (f(z) - z).

    Its steps are cheap, and it keeps no history. It converges only where the spectral radius of (1 - damping) I +
    damping J is
    below 1, and linearly at that rate; Anderson is rarely slower.

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> fixed_point(torch.cos, torch.zeros(1, 1), solver=Picard(max_evals=100, tol=1e-6)).z
        tensor([[0.7391]])
    """

    damping: float = 1.0
    """Length of the step from z towards f(z), in (0, 1]; 1 replaces z by f(z)."""

    is_loop = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step_length("damping", self.damping)

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> Any:
        """Return no state."""
        return None

    def step(self, state: Any, at: Evaluation) -> tuple[Any, Tensor]:
        """Return z + damping (f(z) - z)."""
        return None, at.fz if self.damping == 1 else at.z + self.damping * at.g
