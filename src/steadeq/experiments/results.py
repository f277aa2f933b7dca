"""Numbers of several runs, as files and as means with their spread."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same columns as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def tabulate(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown.

    Example:
        >>> print(tabulate(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [columns, ["---"] * len(columns), *rows]

    def show(cell: str) -> str:
        return cell if cell == "---" else f" {cell.replace('|', chr(92) + '|')} "

    return "\n".join(f"|{'|'.join(map(show, line))}|" for line in lines)


def tabulate_verdicts(summary: Mapping[str, Any]) -> str:
    """Return the verdicts of a `summary.json` as a table in Markdown."""
    rows = [[v["claim"], v["outcome"], v["evidence"]] for v in summary["verdicts"]]
    return tabulate(["claim", "verdict", "numbers"], rows)


def spread(rows: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> dict[str, Any]:
    """Return the number of rows (one for each seed), and mean and standard deviation of each measure that is there.

    Example:
        >>> spread([{"a": 1.0}, {"a": 3.0}], ["a"])
        {'num_seeds': 2, 'a': 2.0, 'a_std': 1.4142135623730951}
    """
    found: dict[str, float | None] = {"num_seeds": len(rows)}
    for measure in measures:
        values = [row[measure] for row in rows if row[measure] is not None]
        found[measure] = mean(values) if values else None
        found[f"{measure}_std"] = (stdev(values) if len(values) > 1 else 0.0) if values else None
    return found
