"""The plain loop."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from .._internal.validation import check_count
from .base import AbstractSolver, Evaluation


@dataclass(frozen=True, kw_only=True)
class Loop(AbstractSolver):
    """Apply z <- f(z) a fixed number of times, as looped and recursive models do.

    The result is the last state, not the best one. It equals the result of `for _ in range(num_steps): z = f(z,
    *inputs)` bit for bit, with any adjoint. The residual is measured at the last step.

    Example:
        >>> import torch
        >>> from steadeq import Unrolled, fixed_point
        >>> fixed_point(torch.cos, torch.zeros(1, 1), solver=Loop(num_steps=3), adjoint=Unrolled()).z
        tensor([[0.8576]])
        >>> block = lambda z, step: z + 2.0**-step  # a block that knows its step
        >>> fixed_point(block, torch.zeros(1, 1), solver=Loop(num_steps=3, pass_step=True)).z
        tensor([[1.7500]])
    """

    num_steps: int = 8
    """Number of steps, each one evaluation of f."""
    pass_step: bool = False
    """Whether f is called as f(z, *inputs, step=k), with k from 0 on, for blocks that know their step."""

    # Named by the others; here they follow.
    max_evals: int = field(init=False, repr=False, default=8)
    tol: float = field(init=False, repr=False, default=0.0)
    patience: int = field(init=False, repr=False, default=1)
    causal: bool = field(init=False, repr=False, default=False)

    is_loop = True
    returns_image = True

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        object.__setattr__(self, "max_evals", self.num_steps)
        super().__post_init__()

    def with_max_evals(self, max_evals: int) -> Loop:
        """Return a loop with another number of steps."""
        return replace(self, num_steps=max_evals)

    def with_tol(self, tol: float) -> Loop:
        """Return the loop, which has no tolerance."""
        return self

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> Any:
        """Return no state."""
        return None

    def step(self, state: Any, at: Evaluation) -> tuple[Any, Tensor]:
        """Return f(z)."""
        return None, at.fz
