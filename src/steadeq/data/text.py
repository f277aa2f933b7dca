"""A text to learn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .dataset import AbstractDataset
from .token_streams import TokenStreams


@dataclass(frozen=True, kw_only=True, eq=False)
class Text(AbstractDataset):
    """Words in order. As samples by index it is cut into pieces; `streams` keeps what comes after what.

    Example:
        >>> text = Text(tokens=torch.arange(8), length=3)
        >>> text.batch(torch.tensor([1, 0]))
        (tensor([[3, 4, 5],
                [0, 1, 2]]), tensor([[4, 5, 6],
                [1, 2, 3]]))
    """

    tokens: Tensor
    """(N,) numbers of words."""
    length: int
    """Of a piece or of a segment."""

    def __post_init__(self) -> None:
        """Refuse a text that is shorter than a piece."""
        if self.length < 1:
            raise InputError(f"length is {self.length}; it must be positive.")
        if len(self.tokens) <= self.length:
            raise InputError(f"A text of {len(self.tokens)} tokens is too short for segments of {self.length}.")

    def __len__(self) -> int:
        """Return the number of whole pieces."""
        return (len(self.tokens) - 1) // self.length

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return pieces, and the words after each of their words."""
        places = indices[:, None] * self.length + torch.arange(self.length)
        return self.tokens[places].long(), self.tokens[places + 1].long()

    def streams(self, batch_size: int) -> TokenStreams:
        """Return the text as so many contiguous streams.

        Raises:
            InputError: It is too short for as many.
        """
        return TokenStreams(self.tokens, batch_size=batch_size, length=self.length)
