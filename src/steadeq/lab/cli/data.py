"""`steadeq data`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from ...checks import suggestion
from ..data import search_path
from ..data.catalog import CATALOG, Entry
from ..data.download import Progress
from ..data.locations import download_folder
from ..errors import InputError
from ..terminal import Work, answer, is_quiet, note
from .arguments import parse, positional
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `data`."""

    name: str | None = positional(default=None)
    """Name of a data set; without one, all are listed."""
    download: bool = False
    """Download it from its official source; an interrupted download continues."""
    to: Path | None = None
    """Folder to download into; by default $STEADEQ_DATA or the user's cache."""
    verify: bool = False
    """Compare the files with their published checksums."""


def run(arguments: Sequence[str]) -> int:
    """Say what data there is, where it is looked for, and how to get it; or get it."""
    summary = "List data sets, where they are, and how to get them; or download one."
    args = parse(Arguments, arguments, command="data", summary=summary)
    if args.name is not None and args.name not in CATALOG:
        raise InputError(
            f"There is no data set {args.name!r}.{suggestion(args.name, CATALOG)} `steadeq data` lists them all."
        )
    if args.name is None and (args.download or args.verify):
        raise InputError(f"--{'download' if args.download else 'verify'} needs the name of a data set.")
    if args.to is not None and not args.download:
        raise InputError("--to needs --download: it names the folder to download into.")
    if args.name is None:
        rows = [[entry.name, entry.state(), entry.summary] for entry in CATALOG.values()]
        print_table(["data", "where", "what it is"], rows)
        note(f"Looked for in {_folders()} ($STEADEQ_DATA, ./data, the user's cache).")
        note("`steadeq data NAME` says how to get one.")
        answer([{"name": name, "where": where, "summary": summary} for name, where, summary in rows])
    elif args.download:
        _download(CATALOG[args.name], args.to)
    elif args.verify:
        with Work(f"Comparing the files of {args.name} with their checksums"):
            place = CATALOG[args.name].verify()
        print(f"All files in {place} have their published checksums.")
        answer({"name": args.name, "where": place})
    else:
        _describe(CATALOG[args.name])
    return 0


def _describe(entry: Entry) -> None:
    print(f"{entry.name}: {entry.summary}")
    answer({"name": entry.name, "where": entry.state(), "summary": entry.summary, "terms": entry.terms})
    print(f"terms: {entry.terms}")
    print(f"where: {entry.state()}")
    if entry.layouts:
        others = "".join(f", and {path}" for path in entry.elsewhere)
        print(f"looked for: {' or '.join(entry.layouts)} in {_folders()}{others}")
        print(f"to get it: {entry.source}")


def _download(entry: Entry, to: Path | None) -> None:
    folder = download_folder() if to is None else to
    with _progress() as progress:
        place = entry.download(folder, progress)
    answer({"name": entry.name, "where": place})
    print(f"{entry.name} is in {place}{', and all files have their published checksums' if entry.checksums else ''}.")
    print(f"terms: {entry.terms}")
    # Unlike `Path.resolve`, this says nothing about links that lead in a circle.
    whole = os.path.realpath(folder)
    if whole not in map(os.path.realpath, search_path()):
        print(f"Set STEADEQ_DATA to {whole} to use it.")


def _folders() -> str:
    return ", ".join(map(str, search_path()))


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Show transfers: bars in a terminal, and one line each elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tasks = {}
    with Bar(*columns, TimeRemainingColumn(), console=console, disable=is_quiet() or not console.is_terminal) as bar:

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name)
                if not console.is_terminal and not is_quiet():
                    size = "" if total is None else f" ({total / 1e6:.1f} MB)"
                    console.print(f"Fetching {name}{size}.", highlight=False, soft_wrap=True)
            bar.update(tasks[name], completed=done, total=total)

        yield show
