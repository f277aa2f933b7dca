"""A text as a batch of contiguous streams."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..errors import InputError


class TokenStreams:
    """A text cut into equally long streams, one for each row of a batch, that are read in segments.

    Row b of a segment goes on where row b of the segment before ended, so that a model may remember what it read. What
    is left over at the end of the text, fewer tokens than there are rows, is not read.

    Args:
        tokens: (N,) numbers of the tokens.
        batch_size: Number of streams.
        length: Number of tokens of a segment; the last one may be shorter.

    Raises:
        InputError: There are not two tokens for each stream, or the sizes are not positive.

    Example:
        >>> import torch
        >>> streams = TokenStreams(torch.arange(11), batch_size=2, length=3)
        >>> len(streams)
        2
        >>> for inputs, targets in streams:
        ...     print(inputs.tolist(), targets.tolist())
        [[0, 1, 2], [5, 6, 7]] [[1, 2, 3], [6, 7, 8]]
        [[3], [8]] [[4], [9]]
    """

    def __init__(self, tokens: Tensor, *, batch_size: int, length: int) -> None:
        if batch_size < 1 or length < 1:
            raise InputError(f"batch_size ({batch_size}) and length ({length}) must be positive.")
        num_steps = len(tokens) // batch_size
        if num_steps < 2:
            raise InputError(
                f"A text of {len(tokens)} tokens is too short for {batch_size} streams of at least 2 tokens."
            )
        self.columns = tokens[: num_steps * batch_size].reshape(batch_size, num_steps)
        self.length = length

    @property
    def num_targets(self) -> int:
        """Number of tokens to predict in all segments together."""
        return self.columns.shape[0] * (self.columns.shape[1] - 1)

    def __len__(self) -> int:
        """Return the number of segments."""
        return -(-(self.columns.shape[1] - 1) // self.length)

    def segment(self, index: int) -> tuple[Tensor, Tensor]:
        """Return (B, L) tokens and the tokens that follow them, as int64.

        Args:
            index: Number of the segment, from 0.

        Raises:
            IndexError: There is no such segment.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"There are {len(self)} segments; there is no {index}.")
        begin = index * self.length
        end = min(begin + self.length, self.columns.shape[1] - 1)
        return self.columns[:, begin:end].long(), self.columns[:, begin + 1 : end + 1].long()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all segments in order."""
        return map(self.segment, range(len(self)))
