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


def search_path() -> list[Path]:
    """Return the folders that are searched, in order: $STEADEQ_DATA, ./data, the user's cache."""
    return [*_chosen(), Path("data"), _cache()]


def download_folder() -> Path:
    """Return where downloads go: $STEADEQ_DATA, or the user's cache, which is found from every working folder."""
    return [*_chosen(), _cache()][0]


def find(*names: str, elsewhere: Sequence[Path] = ()) -> Path | None:
    """Return where the first of some files or folders is: on the search path, or one of the paths elsewhere."""
    places = [folder / name for folder in search_path() for name in names]
    return next((place for place in [*places, *elsewhere] if place.exists()), None)


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
    return packed if packed.exists() else path


def md5(path: Path, *, unpacked: bool = False) -> str:
    """Return the MD5 checksum of a file, or of what a .gz file holds."""
    return digest_of(path, hashlib.md5(usedforsecurity=False), unpacked=unpacked)


def digest_of(path: Path, digest: Any, *, unpacked: bool = False) -> str:
    """Return what a fresh object of `hashlib` makes of a file, or of what a .gz file holds, block by block."""
    try:
        with gzip.open(path) if unpacked else path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    return digest.hexdigest()


def verify(folder: Path, expected: Mapping[str, str]) -> None:
    """Refuse files that are missing or have other MD5 checksums than the expected ones, by the names of all of them.

    For what is there as .gz, the checksum is that of its content, as compressors differ.
    """
    missing, different = [], []
    for name, checksum in expected.items():
        path = plain_or_packed(folder / name)
        if not path.exists():
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


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steadeq"
