"""Word-level texts in their official layouts: WikiText (Merity et al., 2017) and the Penn Treebank (Mikolov, 2010)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import InputError, suggestion
from .locations import require
from .token_cache import load_tokens, load_vocabulary
from .vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the files of a corpus are named."""

    folders: tuple[str, ...]
    """Of which one must be on the search path."""
    train: str
    validation: str
    test: str


LAYOUTS = {
    "wikitext-2": Layout(
        folders=("wikitext-2",), train="wiki.train.tokens", validation="wiki.valid.tokens", test="wiki.test.tokens"
    ),
    "wikitext-103": Layout(
        folders=("wikitext-103",), train="wiki.train.tokens", validation="wiki.valid.tokens", test="wiki.test.tokens"
    ),
    "penn-treebank": Layout(
        folders=("penn-treebank", "simple-examples/data"),
        train="ptb.train.txt",
        validation="ptb.valid.txt",
        test="ptb.test.txt",
    ),
}
"""Which corpora there are."""

_PENN_TREEBANK = {
    "ptb.train.txt": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "ptb.valid.txt": "aa0affc06ff7c36e977d7cd49e3839bf",
    "ptb.test.txt": "8b80168b89c18661a38ef683c0dc3721",
}

CHECKSUMS = {
    "wikitext-2": {
        "wiki.train.tokens": "34a77ebe59551b3a3b3d8c0a2797c976",
        "wiki.valid.tokens": "d756d22ab2310e7e60c094bea5c5a8eb",
        "wiki.test.tokens": "781c9418ab9414bd09e4aad825aae752",
    },
    "penn-treebank": _PENN_TREEBANK,
    "data": _PENN_TREEBANK,
}
"""MD5 of the files of each folder, where they are known."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Texts as numbers, (N,) int32 each, with an `<eos>` after each line."""

    vocabulary: Vocabulary
    """Of the training text."""
    train: Tensor
    validation: Tensor
    test: Tensor


def load(name: str) -> Corpus:
    """Return a corpus that is on the search path.

    Args:
        name: One of `LAYOUTS`.

    Raises:
        InputError: There is no such corpus, or its files are missing, empty or not UTF-8.
    """
    folder, layout = _find(name)
    return read(train=folder / layout.train, validation=folder / layout.validation, test=folder / layout.test)


def load_words(name: str) -> Vocabulary:
    """Return the vocabulary of a corpus alone, without reading its other texts.

    Args:
        name: One of `LAYOUTS`.

    Raises:
        InputError: There is no such corpus, or its training text is missing, empty or not UTF-8.
    """
    folder, layout = _find(name)
    return load_vocabulary(folder / layout.train)


def _find(name: str) -> tuple[Path, Layout]:
    if name not in LAYOUTS:
        raise InputError(f"There is no corpus {name!r}; there are {', '.join(LAYOUTS)}.{suggestion(name, LAYOUTS)}")
    layout = LAYOUTS[name]
    return require(name, *layout.folders), layout


def read(*, train: Path, validation: Path, test: Path) -> Corpus:
    """Return a corpus, given its files.

    The vocabulary is that of the training text: `<eos>`, then words by frequency. Words that are only in the other
    texts become `<unk>`.

    Args:
        train: The text to learn from.
        validation: The text to choose by.
        test: The text to report on.

    Raises:
        InputError: A file is missing, empty or not UTF-8.
    """
    vocabulary = load_vocabulary(train)
    texts = (load_tokens(path, vocabulary) for path in (train, validation, test))
    return Corpus(**dict(zip(("train", "validation", "test"), texts, strict=True)), vocabulary=vocabulary)
