"""Word-level texts in the layout of WikiText (Merity et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Texts as numbers of tokens, with an `<eos>` after each line."""

    vocabulary: Vocabulary
    """The tokens of the training text."""
    train: Tensor
    """(N,) int32 numbers of the text to learn from."""
    validation: Tensor
    """(N,) int32 numbers of the text to choose by."""
    test: Tensor
    """(N,) int32 numbers of the text to report on."""


def read(folder: Path) -> Corpus:
    """Return the corpus in a folder.

    The vocabulary is that of the training text: `<eos>`, then words by frequency. Words that are only in the other
    texts become `<unk>`.

    Raises:
        InputError: A file is missing, empty or not UTF-8.
    """
    vocabulary = read_vocabulary(folder)
    return Corpus(
        vocabulary=vocabulary,
        train=load_tokens(folder / TRAIN, vocabulary),
        validation=load_tokens(folder / VALIDATION, vocabulary),
        test=load_tokens(folder / TEST, vocabulary),
    )


def read_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary of the corpus in a folder alone, without reading its other texts.

    Raises:
        InputError: The training text is missing, empty or not UTF-8.
    """
    return load_vocabulary(folder / TRAIN)
