"""Where data is looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError


def search_path() -> list[Path]:
    """Return the folders that are searched, in order: $STEADEQ_DATA, ./data, the user's cache."""
    return [*_chosen(), Path("data"), _cache()]


def download_folder() -> Path:
    """Return where downloads go: $STEADEQ_DATA, or the user's cache, which is found from every working folder."""
    return [*_chosen(), _cache()][0]


def find(*names: str, elsewhere: Sequence[Path] = ()) -> Path | None:
    """Return the first folder of the search path that holds one of the names, with the name; None if none does.

    Args:
        names: Names of files or folders.
        elsewhere: Complete paths to try after the search path.
    """
    places = [folder / name for folder in search_path() for name in names]
    return next((place for place in [*places, *elsewhere] if place.exists()), None)


def require(dataset: str, *names: str, elsewhere: Sequence[Path] = ()) -> Path:
    """Return where a data set lies.

    Raises:
        InputError: It is nowhere; the message says where it was looked for and how to get it.
    """
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


def _chosen() -> list[Path]:
    return [Path(os.environ["STEADEQ_DATA"])] if os.environ.get("STEADEQ_DATA") else []


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steadeq"
