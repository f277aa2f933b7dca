"""Tables in the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_NUMBER = re.compile(r"[-+±\d.,e%×xkMBs\s]*")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table, with columns of numbers at the right edge."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = all(_NUMBER.fullmatch(row[index]) for row in rows)
        table.add_column(column, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    # Without a terminal there is no edge to wrap at.
    (console if console.is_terminal else Console(width=200)).print(table)


def format_number(value: float | None, digits: str) -> str:
    """Return a number in a format of Python; a dash where there is none."""
    return "-" if value is None else f"{value:{digits}}"
