"""Tables of entries: their numbers next to those of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..report.notation import error_note
from .results import tabulate


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure in a table."""

    title: str
    measure: str
    factor: float = 1.0
    digits: str = ".3g"


def table(content: Mapping[str, Any], columns: Sequence[Column]) -> str:
    """Return the entries of a `summary.json` as a table in Markdown, each number with its spread over seeds.

    Args:
        content: Of the file.
        columns: What to show.
    """
    papers = list(dict.fromkeys(name for entry in content["entries"] for name in entry["paper"]))
    rows = [
        [
            entry["entry"],
            str(entry["max_evals"] or "-"),
            *(_cell(entry, column) for column in columns),
            *(entry["paper"].get(name, "-") for name in papers),
        ]
        for entry in content["entries"]
    ]
    titles = [column.title for column in columns]
    return tabulate(["", "NFE", *titles, *(f"paper: {name}" for name in papers)], rows)


def show(entry: Mapping[str, Any], measure: str, *, factor: float = 1.0, digits: str = ".3g") -> str:
    """Return a measure with its spread and its error, as people write it; a dash where there is none.

    Example:
        >>> show({"score": 0.482, "score_std": 0.008, "num_seeds": 3}, "score", factor=100, digits=".1f")
        '48.2 ± 0.8'
        >>> show({"radius": 0.93, "radius_error": 0.02, "num_seeds": 1}, "radius")
        '0.93 (error 0.02)'
    """
    value = entry[measure]
    if value is None:
        return "-"
    text = f"{factor * value:{digits}}"
    # What is the same for all seeds, such as the number of parameters, has no spread.
    has_spread = entry["num_seeds"] > 1 and f"{measure}_std" in entry
    if has_spread:
        text += f" ± {factor * entry[f'{measure}_std']:{digits}}"
    return text + error_note(entry.get(f"{measure}_error"), entry.get(f"{measure}_unknown"))


def _cell(entry: Mapping[str, Any], column: Column) -> str:
    if column.measure == "score" and entry["diverged"] == 1:
        return "diverged"
    return show(entry, column.measure, factor=column.factor, digits=column.digits)
