"""What language models drop: the same features at all positions, for a whole solve."""

from __future__ import annotations

from torch import Tensor, nn

from ...nn import KeysValues, RelativePositions, draw_mask
from ...nn.dropout import check_dropout
from .cell import DropoutMasks, TransformerCell


class TransformerDropout(nn.Module):
    """Draws all masks of a language model; none in evaluation mode.

    Args:
        probability: Of a zero, of masks of features.
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
            like: (B, L, features) of the positions.
            memory: See `TransformerCell.prepare`.
            mask: Of the encodings of distances.
            injected: See `TransformerCell.prepare`.
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
