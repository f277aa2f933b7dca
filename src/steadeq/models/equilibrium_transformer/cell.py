"""Transformer blocks as a cell: what is injected, the blocks, and what keeps the state bounded."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..._internal.validation import check_choice, check_count, check_step_length
from .block import Positions, RMSNorm, TransformerBlock

Injection = Literal["add", "concat"]
"""How the input enters a block: added to the state, or by a linear map of both together."""


class BlockCell(nn.Module):
    """f of an equilibrium Transformer: maps a state (B, ..., features) to a new one.

    With G the blocks, N the outer normalization and a the relaxation, f(z; x) = z + a (N(G(z + x)) - z). The input is
    seen at each evaluation. The skip connections of the blocks would let the state grow without end; N bounds it, and
    divides the Jacobian by the size of what it normalizes.

    Args:
        blocks: The blocks, one after the other.
        features: Number of features of a position.
        injection: "add" adds the input to the state, "concat" maps both together by a linear map.
        outer_norm: Whether what the blocks return is normalized.
        relaxation: How far an evaluation goes from the state to its image; the equilibria are the same.

    Example:
        >>> from steadeq import fixed_point
        >>> cell = BlockCell([TransformerBlock(features=8, num_heads=2, hidden_features=16)], features=8)
        >>> x = torch.randn(2, 5, 8)
        >>> positions = Positions.of_grid((5,), head_features=4, base=1e4, causal=True, like=x)
        >>> fixed_point(cell, torch.zeros_like(x), x, positions).z.shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        blocks: list[TransformerBlock],
        *,
        features: int,
        injection: Injection = "add",
        outer_norm: bool = True,
        relaxation: float = 1.0,
    ) -> None:
        super().__init__()
        check_cell(num_blocks=len(blocks), injection=injection, relaxation=relaxation)
        self.relaxation = relaxation
        self.blocks = nn.ModuleList(blocks)
        self.mix = nn.Linear(2 * features, features, bias=False) if injection == "concat" else None
        if self.mix is not None:
            # It begins as the sum. A random one would leave the Jacobian near the edge of stability.
            with torch.no_grad():
                self.mix.weight.copy_(torch.eye(features).repeat(1, 2))
        self.outer_norm = RMSNorm(features) if outer_norm else None

    def forward(self, z: Tensor, x: Tensor, positions: Positions) -> Tensor:
        """Map a state to a new one.

        Args:
            z: (B, ..., features).
            x: What is injected, of the same shape.
            positions: Where the positions are.
        """
        h = z + x if self.mix is None else self.mix(torch.cat([z, x], dim=-1))
        for block in self.blocks:
            h = block(h, positions)
        if self.outer_norm is not None:
            h = self.outer_norm(h)
        return h if self.relaxation == 1 else torch.lerp(z, h.to(z.dtype), self.relaxation)

    def extra_repr(self) -> str:
        """Show the relaxation."""
        return f"relaxation={self.relaxation:g}"


def check_cell(*, num_blocks: int, injection: Injection, relaxation: float) -> None:
    """Refuse what a `BlockCell` cannot be made of.

    Raises:
        ValueError: Naming the first field that is wrong.
        TypeError: A count is no integer.
    """
    check_count("num_blocks", num_blocks)
    check_choice("injection", injection, get_args(Injection))
    check_step_length("relaxation", relaxation)
