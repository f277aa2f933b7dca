"""`steadeq report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..report import write_report
from ..run.record import RunRecord
from ..terminal import answer, note
from .arguments import parse, positional


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `report`."""

    runs: tuple[Path, ...] = positional()
    """Folders of the runs to compare."""
    out: Path = Path("report.html")
    """File to write."""
    title: str = "steadeq report"
    """Title of the page."""
    recipe: str | None = None
    """For runs of your own recipe: path/to/file.py:function. The file is executed."""


def run(arguments: Sequence[str]) -> int:
    """Write one HTML file that compares runs."""
    args = parse(Arguments, arguments, command="report", summary="Write one HTML file that compares runs.")
    write_report([RunRecord.read(path, recipe=args.recipe) for path in args.runs], args.out, title=args.title)
    note(f"Written to {args.out}.")
    answer({"report": args.out})
    return 0
