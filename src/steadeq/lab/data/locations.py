"""Where data is looked for, and whether its files are the published ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import is_there, one_line, open_plain

_MAX_UNPACKED = 1 << 32
"""The most bytes of what a .gz file holds that are looked at."""


def search_path() -> list[Path]:
    """Return the folders that are searched, in order: $STEADEQ_DATA, ./data, the user's cache if there is a home."""
    return [*_chosen(), Path("data"), *_cache()]


def download_folder() -> Path:
    """Return where downloads go: $STEADEQ_DATA, or the user's cache, which is found from every working folder."""
    chosen = _chosen()
    return chosen[0] if chosen else cache_folder()


def cache_folder() -> Path:
    """Return the user's cache."""
    folders = _cache()
    if not folders:
        raise InputError("There is no home folder: set XDG_CACHE_HOME to a folder in which data can be stored.")
    return folders[0]


def find(*names: str, elsewhere: Sequence[Path] = ()) -> Path | None:
    """Return where the first of some files or folders is: on the search path, or one of the paths elsewhere."""
    places = [folder / name for folder in search_path() for name in names]
    return next((place for place in [*places, *elsewhere] if is_there(place)), None)


def require(dataset: str, *names: str, elsewhere: Sequence[Path] = ()) -> Path:
    """Return where a data set is, by default under its own name, or say where it was looked for and how to get it."""
    names = names or (dataset,)
    place = find(*names, elsewhere=elsewhere)
    if place is None:
        folders = ", ".join(str(folder) for folder in search_path())
        wanted = " or ".join(names)
        others = "".join(f", and for {path}" for path in elsewhere)
        raise InputError(
            f"The data of {dataset} is missing: looked for {wanted} in {folders}{others}; set STEADEQ_DATA to the "
            f"folder that has it, or see `steadeq data {dataset}` for how to get it."
        )
    return place


def plain_or_packed(path: Path) -> Path:
    """Return the path of a file with .gz behind its name if there is such a file, and its own otherwise."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if is_there(packed) else path


def md5(path: Path, *, unpacked: bool = False) -> str:
    """Return the MD5 checksum of a file, or of what a .gz file holds."""
    return digest_of(path, hashlib.md5(usedforsecurity=False), unpacked=unpacked)


def digest_of(path: Path, digest: Any, *, unpacked: bool = False) -> str:
    """Return what a fresh object of `hashlib` makes of a file, or of what a .gz file holds, block by block."""
    try:
        with open_plain(path) as plain, gzip.open(plain) if unpacked else plain as file:
            while block := file.read(1 << 20):
                digest.update(block)
                if unpacked and file.tell() > _MAX_UNPACKED:
                    raise InputError(f"{path} is refused: it unpacks to more than {_MAX_UNPACKED:,} bytes.")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or one_line(error)}.") from error
    return digest.hexdigest()


def verify(folder: Path, expected: Mapping[str, str]) -> None:
    """Refuse files that are missing or have other MD5 checksums than the expected ones, by the names of all of them.

    For what is there as .gz, the checksum is for its content, as compressors differ.
    """
    missing, different = [], []
    for name, checksum in expected.items():
        path = plain_or_packed(folder / name)
        if not is_there(path):
            missing.append(name)
        elif md5(path, unpacked=path.name != name) != checksum:
            different.append(path.name)
    problems = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((missing, "missing"), (different, "not the published content (by MD5)"))
        if names
    ]
    if problems:
        raise InputError(f"In {folder}, {', and '.join(problems)}.")


def _chosen() -> list[Path]:
    return [Path(os.environ["STEADEQ_DATA"])] if os.environ.get("STEADEQ_DATA") else []


def _cache() -> list[Path]:
    chosen = os.environ.get("XDG_CACHE_HOME")
    try:
        return [Path(chosen or Path.home() / ".cache") / "steadeq"]
    except RuntimeError:
        # No HOME, and a user whom the system does not know, as in some containers.
        return []
