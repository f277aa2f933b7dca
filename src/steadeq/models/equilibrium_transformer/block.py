"""The Transformer block of today's language models: RMSNorm, rotary positions, SwiGLU and no biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._internal.trees import Shared
from ..._internal.validation import check_choice, check_count, check_positive

Attention = Literal["math", "fused"]
"""How attention is computed: written out, so that it can be differentiated twice, or by the kernel of torch."""
Norm = Literal["pre", "post"]
"""Where the normalizations are: before a branch, or after it was added."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions(Shared):
    """Where the L positions of a sample are, which all samples and all evaluations of one solve share."""

    cos: Tensor | None
    """(L, head features / 2) cosines of the angles of rotation; None without rotary positions."""
    sin: Tensor | None
    """Their sines."""
    is_hidden: Tensor | None
    """(L, L) mask, true where a key is later than the position and must not be seen; None without a mask."""

    @classmethod
    def of_grid(
        cls, shape: Sequence[int], *, head_features: int, base: float | None, causal: bool, like: Tensor
    ) -> Positions:
        """Return the positions of a grid of any number of axes, one after the other as `flatten` has them.

        The pairs of features of a head take turns in rotating with the coordinates, so that each axis has its share of
        slow and fast pairs.

        Args:
            shape: Number of positions along each axis.
            head_features: Number of features of a head.
            base: The slowest pair turns by nearly 1 / base a step; None for no rotation.
            causal: Whether a position must not see those after it.
            like: A tensor whose dtype, at least single precision, and device are taken.

        Raises:
            ValueError: A head has fewer pairs of features than the grid has axes.
        """
        length, num_pairs = math.prod(shape), head_features // 2
        is_hidden = torch.ones(length, length, dtype=torch.bool, device=like.device).triu(1) if causal else None
        if base is None:
            return cls(cos=None, sin=None, is_hidden=is_hidden)
        if num_pairs < len(shape):
            raise ValueError(
                f"A head has {head_features} features, but a grid of {len(shape)} axes needs two per axis; raise "
                "features, or lower num_heads."
            )
        # Half precision does not tell one position from the next beyond a few hundred.
        dtype = torch.promote_types(like.dtype, torch.float32)
        axes = [torch.arange(size, dtype=dtype, device=like.device) for size in shape]
        coordinates = torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")], dim=1)
        pairs = torch.arange(num_pairs, device=like.device)
        speeds = base ** (-(pairs // len(shape)).to(dtype) * len(shape) / num_pairs)
        angles = coordinates[:, pairs % len(shape)] * speeds
        return cls(cos=angles.cos(), sin=angles.sin(), is_hidden=is_hidden)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate each pair of features of (B, heads, L, head features) vectors by the angles of their positions."""
        if self.cos is None or self.sin is None:
            return x
        a, b = x.chunk(2, dim=-1)
        # Autocast may have left x in half precision, and products with the angles widen it.
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], dim=-1).to(x.dtype)


class RMSNorm(nn.Module):
    """Divides the features of a position by their root mean square, and multiplies each by a learned gain.

    Args:
        features: Number of features.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., features) to the same shape."""
        # The gain stays out of the kernel, which takes no half precision next to single precision.
        return F.rms_norm(x, self.gain.shape, eps=1e-6) * self.gain


class SelfAttention(nn.Module):
    """Multi-head attention of positions to themselves, whose queries and keys are rotated by their positions.

    Args:
        features: Number of features of a position.
        num_heads: Number of heads.
        attention: "math" is written out and can be differentiated twice, "fused" is torch's kernel.
    """

    def __init__(self, *, features: int, num_heads: int, attention: Attention) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention: Attention = attention
        self.qkv = _make_linear(features, 3 * features)
        self.out = _make_linear(features, features)

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """Map (B, ..., features), where all dimensions between the first and the last are positions."""
        joint = self.qkv(x.flatten(1, -2)).unflatten(2, (3, self.num_heads, -1))
        queries, keys, values = joint.permute(2, 0, 3, 1, 4).unbind(0)
        queries, keys = positions.rotate(queries), positions.rotate(keys)
        is_hidden = positions.is_hidden
        if self.attention == "fused":
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=is_hidden is not None)
        else:
            scores = queries @ keys.mT * queries.shape[-1] ** -0.5
            if is_hidden is not None:
                scores = scores.masked_fill(is_hidden, -torch.inf)
            attended = scores.softmax(dim=-1) @ values
        return self.out(attended.transpose(1, 2).flatten(2)).reshape(x.shape)

    def extra_repr(self) -> str:
        """Show the number of heads and how attention is computed."""
        return f"num_heads={self.num_heads}, attention={self.attention!r}"


class SwiGLU(nn.Module):
    """A map of each position with gated features (Shazeer, 2020): W (silu(U x) * V x).

    Args:
        features: Number of features of a position.
        hidden_features: Number of gated features.
    """

    def __init__(self, *, features: int, hidden_features: int) -> None:
        super().__init__()
        self.up = _make_linear(features, 2 * hidden_features)
        self.down = _make_linear(hidden_features, features)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., features) to the same shape."""
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


class TransformerBlock(nn.Module):
    """Attention, then a map of each position, each with a skip connection.

    With A the attention, F the map of positions, N normalizations and s the scale of the branches, a block is

    - "pre": y = x + s A(N(x)), then y + s F(N(y));
    - "post": y = N(x + s A(x)), then N(y + s F(y)).

    Args:
        features: Number of features of a position.
        num_heads: Number of heads.
        hidden_features: Number of gated features inside the map of positions.
        norm: Where the normalizations are.
        attention: "math" is written out and can be differentiated twice, "fused" is torch's kernel.
        residual_scale: Factor s of both branches.

    Example:
        >>> block = TransformerBlock(features=8, num_heads=2, hidden_features=16)
        >>> x = torch.randn(2, 5, 8)
        >>> block(x, Positions.of_grid((5,), head_features=4, base=1e4, causal=True, like=x)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        *,
        features: int,
        num_heads: int,
        hidden_features: int,
        norm: Norm = "pre",
        attention: Attention = "math",
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_block(
            features=features,
            num_heads=num_heads,
            hidden_features=hidden_features,
            norm=norm,
            attention=attention,
            residual_scale=residual_scale,
        )
        self.norm: Norm = norm
        self.residual_scale = residual_scale
        self.attention = SelfAttention(features=features, num_heads=num_heads, attention=attention)
        self.feed = SwiGLU(features=features, hidden_features=hidden_features)
        self.norm1, self.norm2 = RMSNorm(features), RMSNorm(features)

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """Map (B, ..., features), where all dimensions between the first and the last are positions."""
        if self.norm == "pre":
            x = x + self.residual_scale * self.attention(self.norm1(x), positions)
            return x + self.residual_scale * self.feed(self.norm2(x))
        x = self.norm1(x + self.residual_scale * self.attention(x, positions))
        return self.norm2(x + self.residual_scale * self.feed(x))

    def extra_repr(self) -> str:
        """Show where the normalizations are and how large the branches."""
        return f"norm={self.norm!r}, residual_scale={self.residual_scale:g}"


def check_block(
    *,
    features: int,
    num_heads: int,
    hidden_features: int,
    norm: Norm,
    attention: Attention,
    residual_scale: float,
) -> None:
    """Refuse what a `TransformerBlock` cannot be made of.

    Raises:
        ValueError: Naming the first field that is wrong.
        TypeError: A count is no integer.
    """
    check_count("features", features)
    check_count("num_heads", num_heads)
    check_count("hidden_features", hidden_features)
    if features % (2 * num_heads):
        raise ValueError(
            f"features is {features}; it must be a multiple of twice num_heads ({num_heads}), because heads rotate "
            "pairs of features."
        )
    check_choice("norm", norm, get_args(Norm))
    check_choice("attention", attention, get_args(Attention))
    check_positive("residual_scale", residual_scale)


def _make_linear(in_features: int, out_features: int) -> nn.Linear:
    linear = nn.Linear(in_features, out_features, bias=False)
    # Half of the variance that keeps sizes. With all of it, fresh post-norm cells have spectral radii of 1.0 to 1.3,
    # and their solves do not converge.
    nn.init.normal_(linear.weight, std=0.7 * in_features**-0.5)
    return linear
