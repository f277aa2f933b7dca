"""Checksums: whether files are the published ones."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError

_BLOCK = 1 << 20


def md5(path: Path, *, unpacked: bool = False) -> str:
    """Return the MD5 checksum of a file, or of what a .gz file holds.

    Raises:
        InputError: It cannot be read.
    """
    return digest_of(path, hashlib.md5(usedforsecurity=False), unpacked=unpacked)


def digest_of(path: Path, digest: Any, *, unpacked: bool = False) -> str:
    """Return what a fresh object of `hashlib` makes of a file, or of what a .gz file holds, without holding all of it.

    Raises:
        InputError: It cannot be read.
    """
    try:
        with gzip.open(path) if unpacked else path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    return digest.hexdigest()


def verify(folder: Path, expected: Mapping[str, str]) -> None:
    """Check the files of a folder against their published checksums.

    Args:
        folder: Folder of the files.
        expected: Names of the files with their MD5 checksums; for what is there as .gz, the checksum of its content, as
            compressors differ.

    Raises:
        InputError: Some are missing or differ; the message names them all.
    """
    missing, different = [], []
    for name, checksum in expected.items():
        plain, packed = folder / name, folder / f"{name}.gz"
        path = packed if packed.exists() else plain
        if not path.exists():
            missing.append(name)
        elif md5(path, unpacked=path == packed) != checksum:
            different.append(path.name)
    problems = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((missing, "missing"), (different, "not the published content (by MD5)"))
        if names
    ]
    if problems:
        raise InputError(f"In {folder}, {', and '.join(problems)}.")
