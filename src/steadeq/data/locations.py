"""Where data is looked for."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InputError


def search_path() -> list[Path]:
    """Return the folders that are searched, in order: $STEADEQ_DATA, ./data, the user's cache."""
    folders = [Path(os.environ["STEADEQ_DATA"])] if os.environ.get("STEADEQ_DATA") else []
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*folders, Path("data"), Path(cache) / "steadeq"]


def find(*names: str) -> Path | None:
    """Return the first folder of the search path that holds one of the names, with the name; None if none does."""
    for folder in search_path():
        for name in names:
            if (folder / name).exists():
                return folder / name
    return None


def require(dataset: str, *names: str) -> Path:
    """Return where a dataset lies.

    Raises:
        InputError: It is nowhere; the message says where it was looked for and how to get it.
    """
    place = find(*names)
    if place is None:
        folders = ", ".join(str(folder) for folder in search_path())
        wanted = " or ".join(names)
        raise InputError(
            f"The data of {dataset} is missing: looked for {wanted} in {folders}; set STEADEQ_DATA to the folder that "
            f"has it, or see `steadeq data {dataset}` for how to get it."
        )
    return place
