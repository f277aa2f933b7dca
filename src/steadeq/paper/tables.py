"""Tables in Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .result import Verdict
from .variant import Averages, VariantSummary


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure in a table."""

    title: str
    """Heading."""
    measure: str
    """Name of the measure."""
    factor: float = 1.0
    """Factor that turns the measure into the unit of the table."""
    digits: str = ".3g"
    """How it is written, as a format of Python."""
    beside_paper: bool = False
    """Whether a column with what the paper reports follows."""

    def show(self, row: Averages) -> str:
        """Return a cell."""
        return row.show(self.measure, factor=self.factor, digits=self.digits)


def variant_table(rows: Iterable[VariantSummary], columns: Sequence[Column], *, nfe_beside_paper: bool = False) -> str:
    """Return variants as a table in Markdown, each number with its spread over seeds.

    Args:
        rows: The variants.
        columns: What to show, beside the name of the variant and the budget of evaluations (NFE).
        nfe_beside_paper: Whether the budget of the paper stands beside ours.
    """

    def cells(row: VariantSummary) -> list[str]:
        found = [row.variant, str(row.max_evals or "-")]
        if nfe_beside_paper:
            found.append(row.paper.get("max_evals", "-"))
        for column in columns:
            has_diverged = column.measure == "score" and row.mean("diverged") == 1
            found.append("diverged" if has_diverged else column.show(row))
            if column.beside_paper:
                found.append(row.paper.get(column.measure, "-"))
        return found

    titles = ["model", "NFE", *(["paper"] if nfe_beside_paper else [])]
    for column in columns:
        titles += [column.title, "paper"] if column.beside_paper else [column.title]
    return markdown_table(titles, [cells(row) for row in rows])


def claim_table(verdicts: Iterable[Verdict]) -> str:
    """Return claims and what became of them as a table in Markdown."""
    return markdown_table(["claim", "verdict", "numbers"], [[v.claim, v.outcome, v.evidence] for v in verdicts])


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown.

    Example:
        >>> print(markdown_table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """

    def line(cells: Sequence[str]) -> str:
        return "".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in cells) + "|"

    return "\n".join([line(titles), "|---" * len(titles) + "|", *map(line, rows)])


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; a cell is empty where a row has no such column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_averages(path: Path, rows: Iterable[Averages]) -> None:
    """Write averages as CSV, with what the paper reports in columns of its own."""

    def flat(content: Mapping[str, Any]) -> dict[str, Any]:
        paper = {f"paper_{name}": value for name, value in content.get("paper", {}).items()}
        return {name: value for name, value in content.items() if name != "paper"} | paper

    write_csv(path, [flat(row.to_json()) for row in rows])
