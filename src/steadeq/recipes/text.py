"""Texts to learn a language from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import data
from ..train import AbstractDataConfig, LanguageModeling
from ..train.checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class AbstractTextData(AbstractDataConfig):
    """Words in order, read as a batch of contiguous streams."""

    task = LanguageModeling()

    length: int = 150
    """Words of each stream that a step reads."""
    max_train: int | None = None
    """Words of the training text to use, from the first on; by default all."""
    max_validation: int | None = None
    """Words of the validation text to use, from the first on; by default all."""
    max_test: int | None = None
    """Words of the test text to use, from the first on; by default all."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("data", self, 1, "length")
        for name in ("max_train", "max_validation", "max_test"):
            if getattr(self, name) is not None:
                check_at_least("data", self, 2, name)

    def load(self) -> data.Splits:
        """Return the texts."""
        corpus = data.corpus.load(self.name)

        def text(tokens: Tensor, limit: int | None = None) -> data.Text:
            return data.Text(tokens=tokens[:limit], length=self.length)

        return data.Splits(
            train=text(corpus.train, self.max_train),
            validation=text(corpus.validation, self.max_validation),
            test=text(corpus.test, self.max_test),
        )

    def vocabulary(self) -> data.Vocabulary:
        """Return the words that numbers stand for."""
        return data.corpus.load_words(self.name)


@dataclass(frozen=True, kw_only=True)
class WikiText2Data(AbstractTextData):
    """Articles of Wikipedia, 2 million words."""

    name = "wikitext-2"


@dataclass(frozen=True, kw_only=True)
class WikiText103Data(AbstractTextData):
    """Articles of Wikipedia, 103 million words."""

    name = "wikitext-103"
