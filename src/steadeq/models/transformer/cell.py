"""The Transformer cell (Bai, Kolter and Koltun, 2019): relative attention, then a map of each position."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from ..._internal.validation import check_choice, check_dropout
from ...nn import KeysValues, RelativeAttention, RelativePositions, draw_mask
from ...nn.weight_norm import make_linear

Norm = Literal["post", "pre", "pre-textbook"]
"""Where the normalizations are: see `TransformerCell`."""


class DropoutMasks(NamedTuple):
    """Masks that stay the same over a solve; None where nothing is dropped."""

    attention: Tensor | None = None
    """(B, heads, L, M + L) mask of the attention's probabilities."""
    attended: Tensor | None = None
    """(B, 1, features) mask of what the attention returns."""
    hidden: Tensor | None = None
    """(B, 1, hidden features) mask inside the map of positions."""
    output: Tensor | None = None
    """(B, 1, features) mask of what the map of positions returns."""


class TransformerCell(nn.Module):
    """f of a DEQ-Transformer: maps a state (B, L, features) to a new one.

    With A the attention, F the map of positions (two linear maps with ReLU between) and LN a normalization without
    parameters, f is

    - "post": y = LN(z + A(z)), f = LN(y + F(y));
    - "pre": y = z + A(LN(z)), n = LN(y), f = n + F(n), as in the official code;
    - "pre-textbook": y = z + A(LN(z)), f = y + F(LN(y)).

    Keys and values of memory positions come from their states in the same way, by LN if norm is not "post".

    Args:
        features: Number of features of a position.
        num_heads: Number of heads.
        head_features: Number of features of each head; by default features / num_heads.
        hidden_features: Number of features between the two linear maps.
        norm: Where the normalizations are.
        window: How many positions a position sees, itself included; by default all.
        weight_norm: Whether the linear maps have normalized weights.

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> cell = TransformerCell(features=8, num_heads=2, hidden_features=16)
        >>> x = torch.randn(2, 5, 24)
        >>> memory, positions = cell.prepare(5, memory=torch.randn(2, 3, 8), injected=torch.randn(2, 3, 24))
        >>> fixed_point(cell, torch.zeros(2, 5, 8), x, memory, positions).z.shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        *,
        features: int,
        num_heads: int,
        hidden_features: int,
        head_features: int | None = None,
        norm: Norm = "post",
        window: int | None = None,
        weight_norm: bool = True,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, get_args(Norm))
        self.features, self.hidden_features = features, hidden_features
        self.norm: Norm = norm
        self.attention = RelativeAttention(
            features=features,
            num_heads=num_heads,
            head_features=head_features,
            window=window,
            weight_norm=weight_norm,
        )
        self.linear1 = make_linear(features, hidden_features, weight_norm=weight_norm)
        self.linear2 = make_linear(hidden_features, features, weight_norm=weight_norm)

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
        if memory is not None and self.norm != "post":
            memory = self._normalize(memory)
        return self.attention.prepare(length, memory=memory, injected=injected, mask=mask)

    def draw_masks(
        self,
        length: int,
        *,
        like: Tensor,
        num_memory: int = 0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> DropoutMasks:
        """Draw the masks of a solve.

        Args:
            length: Number of positions, L.
            like: A tensor whose batch, dtype and device are taken.
            num_memory: Number of positions in the memory, M.
            dropout: Probability of a zero in all masks but the first.
            attention_dropout: Probability of a zero in the mask of the attention's probabilities.
        """

        def draw(probability: float, *shape: int) -> Tensor | None:
            return draw_mask((like.shape[0], *shape), probability, like=like) if probability else None

        return DropoutMasks(
            attention=draw(attention_dropout, self.attention.num_heads, length, num_memory + length),
            attended=draw(dropout, 1, self.features),
            hidden=draw(dropout, 1, self.hidden_features),
            output=draw(dropout, 1, self.features),
        )

    def forward(
        self,
        z: Tensor,
        x: Tensor | None,
        memory: KeysValues | None,
        positions: RelativePositions,
        masks: DropoutMasks = DropoutMasks(),  # noqa: B008 (immutable)
    ) -> Tensor:
        """Map a state to a new one.

        Args:
            z: (B, L, features).
            x: (B, L, 3 * heads * head features): what is injected into queries, keys and values, if anything is.
            memory: What `prepare` returned for this batch.
            positions: What `prepare` returned for this length.
            masks: What is dropped.
        """
        is_post = self.norm == "post"
        attended = self.attention(z if is_post else self._normalize(z), x, memory, positions, masks.attention)
        y = z + _drop(attended, masks.attended)
        if self.norm == "pre-textbook":
            return y + self._feed(self._normalize(y), masks)
        y = self._normalize(y)
        y = y + self._feed(y, masks)
        return self._normalize(y) if is_post else y

    def _feed(self, y: Tensor, masks: DropoutMasks) -> Tensor:
        hidden = _drop(F.relu(self.linear1(y)), masks.hidden)
        return _drop(self.linear2(hidden), masks.output)

    def _normalize(self, z: Tensor) -> Tensor:
        return F.layer_norm(z, (self.features,))

    def extra_repr(self) -> str:
        """Show where the normalizations are."""
        return f"norm={self.norm!r}"


class TransformerDropout(nn.Module):
    """Draws all dropout masks of a language model; none in evaluation mode.

    The same features are dropped at all positions, for a whole solve.

    Args:
        probability: Probability that a feature is dropped.
        attention: Probability that an attention weight is dropped.
    """

    def __init__(self, probability: float, *, attention: float) -> None:
        super().__init__()
        check_dropout("dropout", probability)
        check_dropout("attention_dropout", attention)
        self.probability, self.attention = probability, attention

    def forward(self, x: Tensor) -> Tensor:
        """Drop features of (B, L, features)."""
        if not self.training or not self.probability:
            return x
        return x * draw_mask((x.shape[0], 1, x.shape[2]), self.probability, like=x)

    def draw_encoding_mask(self, *, like: Tensor) -> Tensor | None:
        """Return the (features,) mask of the encodings of distances."""
        if not self.training or not self.probability:
            return None
        return draw_mask((like.shape[2],), self.probability, like=like)

    def prepare(
        self,
        cell: TransformerCell,
        *,
        like: Tensor,
        memory: Tensor | None,
        mask: Tensor | None,
        injected: Tensor | None = None,
    ) -> tuple[KeysValues | None, RelativePositions, DropoutMasks]:
        """Return what a cell takes after the state and what is injected into it.

        Args:
            cell: The cell.
            like: (B, L, features) vectors of the positions.
            memory: (B, M, features) states of the positions before them; see `TransformerCell.prepare`.
            mask: (features,) dropout mask of the distance encodings.
            injected: What was injected at the positions of the memory; see `TransformerCell.prepare`.
        """
        length = like.shape[1]
        keys_values, positions = cell.prepare(length, memory=memory, injected=injected, mask=mask)
        masks = cell.draw_masks(
            length,
            like=like,
            num_memory=0 if memory is None else memory.shape[1],
            dropout=self.probability if self.training else 0.0,
            attention_dropout=self.attention if self.training else 0.0,
        )
        return keys_values, positions, masks

    def extra_repr(self) -> str:
        """Show the probabilities."""
        return f"{self.probability:g}, attention={self.attention:g}"


def _drop(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask
