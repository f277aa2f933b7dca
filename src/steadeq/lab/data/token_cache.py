"""Texts as numbers, kept in the user's cache and mapped into memory, so that only what is read takes up memory.

A file of the cache belongs to the path of a text. It begins with what it was made from and with a digest of what
follows. It is made anew when the text or the vocabulary is no longer what it was made from, or when it is damaged.
"""

from __future__ import annotations

import hashlib
import json
import mmap
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
from ..files import open_plain, read_plain, replacing
from .locations import cache_folder, digest_of
from .vocabulary import Vocabulary, read_lines

_FORMAT = 2
_HEADER = 1024
"""Number of bytes before the first token, a multiple of the size of a token."""
_CHUNK = 1 << 20
"""Number of tokens in memory while a text is encoded."""


def load_vocabulary(text: Path) -> Vocabulary:
    """Return the vocabulary of a text, from the cache if it is there."""
    source = _source(text)
    path = _place(text, "vocabulary")
    # Each of its tokens is a word of the text.
    cached = _read_vocabulary(path, source, max_bytes=text.stat().st_size + _HEADER)
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
    # A word has at least a byte, and so has the end of a line, but for the last one.
    max_bytes = _HEADER + torch.int32.itemsize * (text.stat().st_size + 1)
    tokens = _map_tokens(path, source, max_bytes=max_bytes)
    if tokens is None:
        _encode(text, vocabulary, path, source)
        tokens = _map_tokens(path, source, max_bytes=max_bytes)
    if tokens is None:
        raise InputError(f"{path} was damaged while it was written: set XDG_CACHE_HOME to a folder on another disk.")
    return tokens


def _encode(text: Path, vocabulary: Vocabulary, path: Path, source: dict[str, Any]) -> None:
    """Write the tokens of a text."""
    digest = _new_digest()

    def write(chunk: array[int]) -> None:
        digest.update(chunk)
        chunk.tofile(file)

    with _replacing(path) as file:
        file.write(bytes(_HEADER))
        chunk = array("i")
        for words in read_lines(text):
            chunk.extend(vocabulary.encode(words))
            chunk.append(vocabulary.eos)
            if len(chunk) >= _CHUNK:
                write(chunk)
                chunk = array("i")
        write(chunk)
        file.seek(0)
        file.write(json.dumps({**source, "tokens": digest.hexdigest()}).encode().ljust(_HEADER))


def _map_tokens(path: Path, source: dict[str, Any], *, max_bytes: int) -> Tensor | None:
    """Return the tokens in a file, or None if it is not there, damaged, or not made from this source."""
    try:
        with open_plain(path, max_bytes=max_bytes) as file:
            header = json.loads(file.read(_HEADER))
            # Changes are not written back.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        tokens = torch.frombuffer(mapped, dtype=torch.int32, offset=_HEADER)
    except (OSError, ValueError, RecursionError):
        return None
    digest = _new_digest()
    with memoryview(mapped)[_HEADER:] as body:
        digest.update(body)
    return tokens if header == {**source, "tokens": digest.hexdigest()} else None


def _read_vocabulary(path: Path, source: dict[str, Any], *, max_bytes: int) -> Vocabulary | None:
    """Return the vocabulary in a file, or None if it is not there, damaged, or not made from this source."""
    try:
        first, *tokens = read_plain(path, max_bytes=max_bytes).decode().split("\n")
        vocabulary = Vocabulary(tokens)
        header = json.loads(first)
    except (ValueError, RecursionError):
        return None
    return vocabulary if header == {**source, "vocabulary": vocabulary.digest()} else None


def _source(text: Path) -> dict[str, Any]:
    """Return what tells the content of a text from any other; times and sizes are not to be relied on."""
    return {"format": _FORMAT, "text": digest_of(text, _new_digest())}


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def _place(text: Path, kind: str) -> Path:
    whole = text.resolve()
    name = hashlib.blake2b(os.fsencode(whole), digest_size=8).hexdigest()
    # The names are for people, and names of files may not be longer than 255 bytes.
    return cache_folder() / "text" / f"{whole.parent.name[:40]}-{whole.name[:40]}-{name}.{kind}"


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file of the cache, which is never there in part."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder with room for it."
        ) from error
