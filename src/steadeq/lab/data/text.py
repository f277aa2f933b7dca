"""Texts to learn a language from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._internal.validation import check_count
from ..errors import InputError
from ..tasks import LanguageModeling
from . import corpus
from .dataset import AbstractDataConfig, Splits
from .locations import require
from .readers import AbstractContiguousDataset, StreamReader
from .token_streams import TokenStreams
from .vocabulary import Vocabulary


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
        """Check that there is at least one piece."""
        check_count("length", self.length)
        if len(self.tokens) <= self.length:
            raise InputError(f"A text of {len(self.tokens)} tokens is too short for segments of {self.length}.")

    def __len__(self) -> int:
        """Return the number of whole pieces."""
        return (len(self.tokens) - 1) // self.length

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return pieces, and the token after each of their tokens."""
        places = indices[:, None] * self.length + torch.arange(self.length)
        return self.tokens[places].long(), self.tokens[places + 1].long()

    def streams(self, batch_size: int) -> TokenStreams:
        """Return the text as so many contiguous streams.

        Raises:
            InputError: It is too short for as many.
        """
        return TokenStreams(self.tokens, batch_size=batch_size, length=self.length)

    def open_reader(self, *, batch_size: int, num_parts: int, parts: Sequence[int], seed: int) -> StreamReader:
        """Return a reader of as many streams as a batch has rows."""
        return StreamReader(self.tokens, length=self.length, batch_size=batch_size, num_parts=num_parts)

    def evaluation_batches(self, *, batch_size: int, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the segments of the streams of a process."""
        # At least one stream for each process, and not so many that each of them is hardly a segment.
        num_streams = max(min(batch_size, len(self)), world_size)
        for tokens, following in self.streams(num_streams):
            yield tokens[rank::world_size], following[rank::world_size]


@dataclass(frozen=True, kw_only=True)
class AbstractTextConfig(AbstractDataConfig):
    """Words in order, read as a batch of contiguous streams; a subclass names the corpus."""

    task = LanguageModeling()

    length: int = 150
    """Tokens of each stream that a step reads."""
    max_train: int | None = None
    """Tokens of the training text to use, from the first on; all if not given."""
    max_validation: int | None = None
    """Tokens of the validation text to use, from the first on; all if not given."""
    max_test: int | None = None
    """Tokens of the test text to use, from the first on; all if not given."""

    def __post_init__(self) -> None:
        check_count("length", self.length)
        for name in ("max_train", "max_validation", "max_test"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=2)

    def load(self) -> Splits:
        """Return the texts.

        Raises:
            InputError: The files are missing, empty or not UTF-8, or a text is shorter than a segment.
        """
        texts = corpus.read(require(self.name, self.name))
        return Splits(
            train=Text(tokens=texts.train[: self.max_train], length=self.length),
            validation=Text(tokens=texts.validation[: self.max_validation], length=self.length),
            test=Text(tokens=texts.test[: self.max_test], length=self.length),
        )

    def vocabulary(self) -> Vocabulary:
        """Return the tokens that numbers stand for, without reading more than the training text.

        Raises:
            InputError: The training text is missing, empty or not UTF-8.
        """
        return corpus.read_vocabulary(require(self.name, self.name))


@dataclass(frozen=True, kw_only=True)
class WikiText2(AbstractTextConfig):
    """Articles of Wikipedia, 2 million words."""

    name = "wikitext-2"


@dataclass(frozen=True, kw_only=True)
class WikiText103(AbstractTextConfig):
    """Articles of Wikipedia, 103 million words."""

    name = "wikitext-103"
