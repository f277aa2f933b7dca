"""Operator splitting as a fixed-point map, so that every solver, adjoint and spectrum applies to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._internal.trees import Shared
from ..._internal.validation import check_choice, check_positive
from .operator import AbstractMonotoneOperator, Blocks, norm_bound, resolvent

Splitting = Literal["peaceman-rachford", "forward-backward"]
"""Method that finds the zero of the sum of two monotone operators."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedStep(Shared):
    """Values that all evaluations of a solve share, because they depend on the parameters alone.

    Not batched: as an input of the cell it passes through compaction untouched. Gradients reach the parameters through
    it if it was made with gradients on.
    """

    blocks: Blocks
    """The linear map of a step, W or its resolvent."""
    alpha: float | Tensor
    """The step size."""


class MonotoneCell(nn.Module):
    """One step of a splitting method for z = ReLU(W z + x).

    "forward-backward": f(z) = ReLU(z - alpha (z - W z - x)), with the equilibrium itself as the state. A contraction
    for alpha < 2 m / ‖I - W‖².

    "peaceman-rachford": the state is an auxiliary u, and the equilibrium is ReLU(u). With the resolvent
    V = ((1 + alpha) I - alpha W)⁻¹, f(u) = 2 V (|u| + alpha x) - |u|, where |u| = 2 ReLU(u) - u. A contraction for
    every alpha > 0, and a faster one.

    States are tensors or, for an operator with tiers, tuples of them.

    Args:
        operator: The map W.
        splitting: Which method is iterated.
        alpha: Step size of the method. By default, with L an upper bound of ‖I - W‖ that follows the parameters as they
            are trained: 1 / √(m L) for "peaceman-rachford", and m / L² for "forward-backward", where the bound on its
            contraction is best.

    Example:
        >>> import torch
        >>> from steadeq import Picard, fixed_point
        >>> from steadeq.models.monotone import MonotoneLinear
        >>> cell = MonotoneCell(MonotoneLinear(features=3))
        >>> x = torch.randn(2, 3)
        >>> u = fixed_point(cell, torch.zeros(2, 3), x, solver=Picard(max_evals=100, tol=1e-6)).z
        >>> z = cell.equilibrium(u)
        >>> torch.allclose(z, torch.relu(cell.operator(z) + x), atol=1e-4)
        True
    """

    def __init__(
        self,
        operator: AbstractMonotoneOperator,
        *,
        splitting: Splitting = "peaceman-rachford",
        alpha: float | None = None,
    ) -> None:
        super().__init__()
        check_choice("splitting", splitting, get_args(Splitting))
        if alpha is not None:
            check_positive("alpha", alpha)
        self.operator = operator
        self.splitting: Splitting = splitting
        self.alpha = alpha

    def prepare(self) -> SharedStep:
        """Return what the evaluations of a solve share, with its graph if gradients are on."""
        W, m, alpha = self.operator.blocks(), self.operator.m, self.alpha
        # The equilibrium does not depend on the step size, so that no gradient is lost where it has no graph.
        if self.splitting == "peaceman-rachford":
            if alpha is None:
                # Any alpha converges: a rough bound will do.
                alpha = (m * norm_bound(W, num_squarings=2)) ** -0.5
            return SharedStep(blocks=resolvent(W, alpha), alpha=alpha)
        return SharedStep(blocks=W, alpha=m / norm_bound(W) ** 2 if alpha is None else alpha)

    def forward(self, z: Any, x: Any, shared: SharedStep | None = None) -> Any:
        """Map a state and the encoded input, of one shape, to a new state.

        Args:
            z: The state.
            x: The encoded input, bias included.
            shared: What `prepare` returned; without it, this evaluation prepares its own.
        """
        if shared is None:
            shared = self.prepare()
        blocks, alpha = shared.blocks, shared.alpha
        if self.splitting == "peaceman-rachford":
            reflected = _map_tiers(torch.abs, z)
            shifted = _map_tiers(lambda r, x: r + alpha * x, reflected, x)
            return _map_tiers(lambda v, r: 2 * v - r, self.operator.apply_resolvent(blocks, shifted), reflected)
        Wz = self.operator.apply_blocks(blocks, z)
        return _map_tiers(lambda z, Wz, x: F.relu((1 - alpha) * z + alpha * (Wz + x)), z, Wz, x)

    def equilibrium(self, state: Any) -> Any:
        """Return z, given the state of either method."""
        return _map_tiers(F.relu, state)

    def extra_repr(self) -> str:
        """Show the method and its step size."""
        return f"splitting={self.splitting!r}, alpha={self.alpha}"


def _map_tiers(function: Callable[..., Tensor], *states: Any) -> Any:
    if isinstance(states[0], Tensor):
        return function(*states)
    return tuple(function(*tier) for tier in zip(*states, strict=True))
