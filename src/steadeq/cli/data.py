"""`steadeq data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from ..data import search_path
from ..data.catalogue import CATALOGUE
from ..errors import InputError, suggestion
from .arguments import parse
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `data` takes."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A dataset; without one, all are listed."""


def run(arguments: Sequence[str]) -> int:
    """Say what data there is, where it is looked for, and how to get it."""
    given = parse(
        Arguments,
        arguments,
        command="data",
        summary="What data is there, where it is looked for, and how to get it.",
    )
    folders = ", ".join(map(str, search_path()))
    if given.name is None:
        rows = [[entry.name, entry.state(), entry.summary] for entry in CATALOGUE.values()]
        print_table(["data", "where", "what it is"], rows)
        print(f"Looked for in {folders} ($STEADEQ_DATA, ./data, the user's cache).")
        return 0
    if given.name not in CATALOGUE:
        raise InputError(f"There is no dataset {given.name!r}.{suggestion(given.name, CATALOGUE)}")
    entry = CATALOGUE[given.name]
    print(f"{entry.name}: {entry.summary}")
    print(f"terms: {entry.terms}")
    print(f"where: {entry.state()}")
    if entry.layouts:
        print(f"looked for: {' or '.join(entry.layouts)} in {folders}")
        print(f"to get it: {entry.source}")
    return 0
