"""`steadeq report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..errors import InputError
from ..report import RunSummary, write_report
from ..train import Run
from .arguments import parse


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `report` takes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of the runs to compare."""
    out: Path = Path("report.html")
    """The file to write."""
    title: str = "steadeq report"
    """Of the page."""


def run(arguments: Sequence[str]) -> int:
    """Write one HTML file that compares runs."""
    given = parse(Arguments, arguments, command="report", summary="Write one HTML file that compares runs.")
    if not given.runs:
        raise InputError("Which runs? Name at least one folder.")
    summaries = [RunSummary.read(Run.open(path)) for path in given.runs]
    write_report(summaries, given.out, title=given.title)
    print(f"Written to {given.out}.")
    return 0
