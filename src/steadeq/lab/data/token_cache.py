"""Texts as numbers, kept in the user's cache and mapped into memory, so that only what is read takes up memory.

A file of the cache belongs to the path of a text. It begins with what it was made from, and is made anew when that is
no longer what the text and the vocabulary are, or when it is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..errors import InputError
from .locations import digest_of, search_path
from .vocabulary import Vocabulary, read_lines

_FORMAT = 1
_HEADER = 1024
"""Number of bytes before the first token, a multiple of the size of a token."""
_CHUNK = 1 << 20
"""Number of tokens in memory while a text is encoded."""


def load_vocabulary(text: Path) -> Vocabulary:
    """Return the vocabulary of a text, from the cache if it is there."""
    source = _source(text)
    path = _place(text, "vocabulary")
    cached = _read_vocabulary(path, source)
    if cached is not None:
        return cached
    vocabulary = Vocabulary.of_lines(read_lines(text))
    with _replacing(path) as file:
        header = {**source, "vocabulary": vocabulary.digest()}
        file.write("\n".join([json.dumps(header), *vocabulary.tokens]).encode())
    return vocabulary


def load_tokens(text: Path, vocabulary: Vocabulary) -> Tensor:
    """Return the numbers of all words of a text and of an `<eos>` after each line, from the cache if they are there.

    They are (N,) int32, mapped from the file; changes to them are not written back.
    """
    source = {**_source(text), "vocabulary": vocabulary.digest(), "byteorder": sys.byteorder}
    path = _place(text, "tokens")
    num_tokens = _count_tokens(path, source)
    if num_tokens is None:
        num_tokens = _encode(text, vocabulary, path, source)
    skipped = _HEADER // torch.int32.itemsize
    mapped = torch.from_file(str(path), shared=False, size=skipped + num_tokens, dtype=torch.int32)
    return mapped[skipped:]


def _encode(text: Path, vocabulary: Vocabulary, path: Path, source: dict[str, Any]) -> int:
    """Write the tokens of a text and return their number."""
    with _replacing(path) as file:
        file.write(bytes(_HEADER))
        chunk = array("i")
        for words in read_lines(text):
            chunk.extend(vocabulary.encode(words))
            chunk.append(vocabulary.eos)
            if len(chunk) >= _CHUNK:
                chunk.tofile(file)
                chunk = array("i")
        chunk.tofile(file)
        num_tokens = (file.tell() - _HEADER) // torch.int32.itemsize
        file.seek(0)
        file.write(json.dumps({**source, "num_tokens": num_tokens}).encode().ljust(_HEADER))
    return num_tokens


def _count_tokens(path: Path, source: dict[str, Any]) -> int | None:
    """Return how many tokens a file has, or None if it is not there, damaged, or not made from this source."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER))
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError):
        return None
    num_tokens, rest = divmod(size - _HEADER, torch.int32.itemsize)
    return num_tokens if not rest and header == {**source, "num_tokens": num_tokens} else None


def _read_vocabulary(path: Path, source: dict[str, Any]) -> Vocabulary | None:
    """Return the vocabulary in a file, or None if it is not there, damaged, or not made from this source."""
    try:
        first, *tokens = path.read_bytes().decode().split("\n")
        vocabulary = Vocabulary(tokens)
        header = json.loads(first)
    except (OSError, ValueError):
        return None
    return vocabulary if header == {**source, "vocabulary": vocabulary.digest()} else None


def _source(text: Path) -> dict[str, Any]:
    """Return what tells the content of a text from any other; times and sizes are not to be relied on."""
    return {"format": _FORMAT, "text": digest_of(text, hashlib.blake2b(digest_size=16))}


def _place(text: Path, kind: str) -> Path:
    whole = text.resolve()
    name = hashlib.blake2b(os.fsencode(whole), digest_size=8).hexdigest()
    # The last folder of the search path is the user's cache.
    return search_path()[-1] / "text" / f"{whole.parent.name}-{whole.name}-{name}.{kind}"


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file under another name that becomes its own when all is well, so that it is never there in part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder with room for it."
        ) from error
