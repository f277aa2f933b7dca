"""Texts to learn a language from, in the layout of WikiText (Merity et al., 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...checks import check_count
from ..errors import InputError
from ..tasks import LanguageModeling
from .dataset import AbstractDataConfig, Splits, digest
from .locations import require
from .readers import AbstractContiguousDataset, AbstractReader, check_parts
from .token_cache import load_tokens, load_vocabulary
from .vocabulary import Vocabulary

TRAIN, VALIDATION, TEST = "wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"
CHECKSUMS = {
    "wikitext-2": {
        TRAIN: "34a77ebe59551b3a3b3d8c0a2797c976",
        VALIDATION: "d756d22ab2310e7e60c094bea5c5a8eb",
        TEST: "781c9418ab9414bd09e4aad825aae752",
    },
}
"""MD5 checksums of the files of each folder, where they are known."""


class TokenStreams:
    """A text cut into equally long streams, one for each row of a batch, that are read in segments.

    Row b of a segment goes on where row b of the segment before ended, so that a model may remember what it read. What
    is left over at the end of the text, fewer tokens than there are rows, is not read. The last segment may be shorter.

    Example:
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

    def __len__(self) -> int:
        return -(-(self.columns.shape[1] - 1) // self.length)

    def segment(self, index: int) -> tuple[Tensor, Tensor]:
        """Return (B, L) tokens of a segment, counted from 0, and the tokens that follow them, as int64."""
        if not 0 <= index < len(self):
            raise IndexError(f"There are {len(self)} segments; index {index} is out of range.")
        begin = index * self.length
        end = min(begin + self.length, self.columns.shape[1] - 1)
        return self.columns[:, begin:end].long(), self.columns[:, begin + 1 : end + 1].long()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self.segment, range(len(self)))


class StreamReader(AbstractReader):
    """Reads segments of a text that follow one another in as many streams as a batch has rows.

    The last segment of an epoch may be shorter than the others.
    """

    is_contiguous = True

    def __init__(self, tokens: Tensor, *, length: int, batch_size: int, num_parts: int) -> None:
        check_parts(batch_size, num_parts)
        self._streams = TokenStreams(tokens, batch_size=batch_size, length=length)
        self._batch_size, self._size = batch_size, batch_size // num_parts
        self.steps_per_epoch = len(self._streams)
        if self._streams.columns.shape[1] <= length:
            raise InputError(
                f"A text of {len(tokens)} tokens is too short for {batch_size} streams (loop.batch_size) of at least "
                f"{length} tokens (data.length)."
            )

    def num_samples(self, step: int) -> int:
        return self._batch_size

    def get(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        tokens, following = self._streams.segment(step % self.steps_per_epoch)
        rows = slice(part * self._size, (part + 1) * self._size)
        return tokens[rows], following[rows]

    def close(self) -> None:
        pass  # Nothing is read ahead.


@dataclass(frozen=True, kw_only=True, eq=False)
class Text(AbstractContiguousDataset):
    """Tokens in order; as samples by index they are cut into pieces, and `streams` keeps what comes after what.

    Example:
        >>> text = Text(tokens=torch.arange(8), length=3)
        >>> text.batch(torch.tensor([1, 0]))
        (tensor([[3, 4, 5],
                [0, 1, 2]]), tensor([[4, 5, 6],
                [1, 2, 3]]))
    """

    tokens: Tensor
    """(N,) numbers of the tokens."""
    length: int
    """Number of tokens of a piece or of a segment."""

    def __post_init__(self) -> None:
        check_count("length", self.length)
        if len(self.tokens) <= self.length:
            raise InputError(f"A text of {len(self.tokens)} tokens is too short for segments of {self.length}.")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        places = indices[:, None] * self.length + torch.arange(self.length)
        return self.tokens[places].long(), self.tokens[places + 1].long()

    def fingerprint(self) -> str:
        return digest(self.length, self.tokens)

    def streams(self, batch_size: int) -> TokenStreams:
        """Return the text as so many contiguous streams."""
        return TokenStreams(self.tokens, batch_size=batch_size, length=self.length)

    def open_reader(self, *, batch_size: int, num_parts: int, parts: Sequence[int], seed: int) -> StreamReader:
        return StreamReader(self.tokens, length=self.length, batch_size=batch_size, num_parts=num_parts)

    def evaluation_batches(self, *, batch_size: int, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        # At least one stream for each process, and not so many that each of them is hardly a segment.
        num_streams = max(min(batch_size, len(self)), world_size)
        for tokens, following in self.streams(num_streams):
            yield tokens[rank::world_size], following[rank::world_size]


@dataclass(frozen=True, kw_only=True)
class AbstractTextConfig(AbstractDataConfig):
    """Words in order, read as a batch of contiguous streams; a subclass names the corpus."""

    task = LanguageModeling()
    # The streams of the official code, as their number changes the perplexity.
    eval_batch_size = 16

    length: int = 150
    """Number of tokens of each stream that one step reads; a batch has as many streams as its size."""
    max_train: int | None = None
    """Number of tokens of the training text to use, from the first on; None for all of them."""
    max_validation: int | None = None
    """Number of tokens of the validation text to use, from the first on; None for all of them."""
    max_test: int | None = None
    """Number of tokens of the test text to use, from the first on; None for all of them."""

    def __post_init__(self) -> None:
        check_count("length", self.length)
        for name in ("max_train", "max_validation", "max_test"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=2)

    def load(self) -> Splits:
        folder, vocabulary = require(self.name), self.vocabulary()
        limits = {TRAIN: self.max_train, VALIDATION: self.max_validation, TEST: self.max_test}
        train, validation, test = (
            Text(tokens=load_tokens(folder / name, vocabulary)[:limit], length=self.length)
            for name, limit in limits.items()
        )
        return Splits(train=train, validation=validation, test=test)

    def vocabulary(self) -> Vocabulary:
        """Return the tokens that numbers stand for, which are those of the training text; no other one is read."""
        return load_vocabulary(require(self.name) / TRAIN)


@dataclass(frozen=True, kw_only=True)
class WikiText2(AbstractTextConfig):
    """Articles of Wikipedia, 2 million words."""

    name = "wikitext-2"


@dataclass(frozen=True, kw_only=True)
class WikiText103(AbstractTextConfig):
    """Articles of Wikipedia, 103 million words."""

    name = "wikitext-103"
