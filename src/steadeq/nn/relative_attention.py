"""Causal attention with relative positions (Dai et al., 2019), split into what a solve does once and what it repeats.

Keys and values of memory positions and the projected positions do not depend on the iterate of a solve: `prepare`
computes them once, and an evaluation takes them as inputs. Written out, as fused attention has no double backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._internal.trees import Shared
from .._internal.validation import check_count
from .weight_norm import make_linear


class KeysValues(NamedTuple):
    """Keys and values of the memory; batched, so that a cell can take them as an input."""

    keys: Tensor
    """(B, heads, M, head features) keys of the memory's positions."""
    values: Tensor
    """(B, heads, M, head features) values of the memory's positions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RelativePositions(Shared):
    """Encoded positions, shared by all samples and all evaluations of a solve.

    Not batched: as an input of a cell it passes through compaction untouched. Gradients reach the parameters through
    it if it was made with gradients on.
    """

    projected: Tensor
    """(heads, head features, M + L) projected encodings of the distances M + L - 1 down to 0."""
    is_hidden: Tensor
    """(L, M + L): whether a position must not see a key, as that is later or beyond the window."""


class RelativeAttention(nn.Module):
    """Multi-head attention of L positions to themselves, to earlier ones and to M positions of a memory before them.

    The score of a query q for a key k at some distance, with r the projected encoding of that distance, is
    ((q + u)·k + (q + v)·r) / √(head features), with learned u and v for each head. What is injected is added to
    queries, keys and values.

    Args:
        features: Number of features of a position.
        num_heads: Number of heads.
        head_features: Number of features of queries, keys and values of each head; by default features / num_heads.
        window: How many positions a position sees, itself included; by default all.
        weight_norm: Whether the linear maps have normalized weights.

    Example:
        >>> attention = RelativeAttention(features=8, num_heads=2, window=4)
        >>> z, x = torch.randn(2, 5, 8), torch.randn(2, 5, 24)
        >>> memory, positions = attention.prepare(5, memory=torch.randn(2, 3, 8), injected=torch.randn(2, 3, 24))
        >>> attention(z, x, memory, positions).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        *,
        features: int,
        num_heads: int,
        head_features: int | None = None,
        window: int | None = None,
        weight_norm: bool = True,
    ) -> None:
        super().__init__()
        check_attention(features=features, num_heads=num_heads, head_features=head_features, window=window)
        if head_features is None:
            head_features = features // num_heads
        self.features, self.num_heads, self.head_features, self.window = features, num_heads, head_features, window
        width = num_heads * head_features
        self.qkv = make_linear(features, 3 * width, bias=False, weight_norm=weight_norm)
        self.position = make_linear(features, width, bias=False, weight_norm=weight_norm)
        self.out = make_linear(width, features, weight_norm=weight_norm)
        self.content_bias = nn.Parameter(torch.empty(num_heads, 1, head_features).normal_(std=0.01))
        self.position_bias = nn.Parameter(torch.empty(num_heads, 1, head_features).normal_(std=0.01))

    def prepare(
        self,
        length: int,
        *,
        memory: Tensor | None = None,
        injected: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[KeysValues | None, RelativePositions]:
        """Return what the evaluations of a solve share, with its graph if gradients are on.

        Args:
            length: Number of positions, L.
            memory: (B, M, features) states of the positions before them, from the earliest on.
            injected: (B, M, 3 * heads * head features): what was injected at those positions, if anything was.
            mask: (features,) dropout mask of the distance encodings.
        """
        num_memory = 0 if memory is None else memory.shape[1]
        positions = self._positions(length, num_memory, mask)
        if memory is None or not num_memory:
            return None, positions
        if injected is not None and injected.shape[:2] != memory.shape[:2]:
            raise ValueError(
                f"memory has shape {tuple(memory.shape)} and injected {tuple(injected.shape)}; both must have the same "
                "positions."
            )
        _, keys, values = self._heads(memory, injected)
        return KeysValues(keys, values), positions

    def forward(
        self,
        z: Tensor,
        x: Tensor | None,
        memory: KeysValues | None,
        positions: RelativePositions,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Map (B, L, features) to the same shape.

        Args:
            z: (B, L, features) vectors of the positions.
            x: (B, L, 3 * heads * head features): what is injected into queries, keys and values, if anything is.
            memory: What `prepare` returned for this batch.
            positions: What `prepare` returned for this length.
            mask: (B, heads, L, M + L) dropout mask of the probabilities.
        """
        queries, keys, values = self._heads(z, x)
        if memory is not None:
            keys, values = torch.cat([memory.keys, keys], dim=2), torch.cat([memory.values, values], dim=2)
        by_content = (queries + self.content_bias) @ keys.mT
        by_position = rel_shift((queries + self.position_bias) @ positions.projected)
        scores = (by_content + by_position) * self.head_features**-0.5
        probabilities = scores.masked_fill(positions.is_hidden, -torch.inf).softmax(dim=-1)
        if mask is not None:
            probabilities = probabilities * mask
        return self.out((probabilities @ values).transpose(1, 2).flatten(2))

    def _heads(self, z: Tensor, x: Tensor | None) -> tuple[Tensor, ...]:
        """Return queries, keys and values, (B, heads, L, head features) each."""
        joint = self.qkv(z) if x is None else self.qkv(z) + x
        return joint.unflatten(2, (3, self.num_heads, self.head_features)).permute(2, 0, 3, 1, 4).unbind(0)

    def _positions(self, length: int, num_memory: int, mask: Tensor | None) -> RelativePositions:
        like = self.content_bias
        encodings = encode_distances(length + num_memory, self.features, like=like)
        if mask is not None:
            encodings = encodings * mask
        projected = self.position(encodings).unflatten(1, (self.num_heads, self.head_features)).permute(1, 2, 0)
        queries = torch.arange(num_memory, num_memory + length, device=like.device)
        distances = queries[:, None] - torch.arange(num_memory + length, device=like.device)
        is_hidden = distances < 0
        if self.window is not None:
            is_hidden = is_hidden | (distances >= self.window)
        return RelativePositions(projected=projected, is_hidden=is_hidden)

    def extra_repr(self) -> str:
        """Show the window."""
        return f"num_heads={self.num_heads}, head_features={self.head_features}, window={self.window}"


def check_attention(*, features: int, num_heads: int, head_features: int | None, window: int | None) -> None:
    """Refuse sizes that `RelativeAttention` cannot have.

    Raises:
        ValueError: Naming the first one.
    """
    if head_features is not None:
        check_count("head_features", head_features)
    elif features % num_heads:
        raise ValueError(
            f"features is {features}, which is not a multiple of num_heads ({num_heads}); set head_features."
        )
    if features % 2:
        raise ValueError(f"features is {features}; it must be even, half sines and half cosines.")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; a position must at least see itself.")


def encode_distances(num_distances: int, features: int, *, like: Tensor) -> Tensor:
    """Return (num_distances, features): sines, then cosines of the distances num_distances - 1 down to 0.

    Args:
        num_distances: Number of distances.
        features: Number of features of an encoding, an even number.
        like: A tensor whose dtype and device are taken.

    Example:
        >>> encode_distances(3, 2, like=torch.zeros(1))
        tensor([[ 0.9093, -0.4161],
                [ 0.8415,  0.5403],
                [ 0.0000,  1.0000]])
    """
    # Half precision does not tell one distance from the next beyond a few hundred.
    dtype = torch.promote_types(like.dtype, torch.float32)
    distances = torch.arange(num_distances - 1, -1, -1, dtype=dtype, device=like.device)
    frequencies = 10_000 ** (-torch.arange(0, features, 2, dtype=dtype, device=like.device) / features)
    angles = distances[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)


def rel_shift(x: Tensor) -> Tensor:
    """Turn scores by distance into scores by key, with a view of the padded tensor instead of a gather.

    Args:
        x: (B, heads, L, K), where the last dimension stands for distances K - 1 down to 0, and queries are the last L
            of K positions.

    Returns:
        The same shape, where the last dimension stands for the K positions. Entries of positions after the query's have
        no meaning, and must be masked.

    Example:
        >>> by_distance = torch.tensor([[2, 1, 0], [2, 1, 0], [2, 1, 0]])[None, None]
        >>> rel_shift(by_distance).tril()[0, 0]
        tensor([[0, 0, 0],
                [1, 0, 0],
                [2, 1, 0]])
    """
    batch, heads, num_queries, num_keys = x.shape
    padded = F.pad(x, (1, 0)).reshape(batch, heads, num_keys + 1, num_queries)
    return padded[:, :, 1:].reshape(x.shape)
