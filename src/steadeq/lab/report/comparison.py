"""The table that compares groups of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import notation
from ..run.record import Split
from .groups import RunGroup

_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("evaluations", "evals", notation.number),
    ("residual", "residual", notation.small),
    ("‖J‖²/d", "jacobian_norm", notation.number),
    ("ρ(J)", "spectral_radius", notation.number),
    ("forward evals in training", "forward_evals", notation.number),
    ("backward evals in training", "backward_evals", notation.number),
    ("time per step", "seconds_per_step", notation.duration),
    ("training time", "seconds", notation.duration),
    ("peak memory", "memory_mb", notation.memory),
    ("parameters", "num_parameters", notation.whole),
    ("skipped steps", "num_skipped", notation.whole),
)
"""Title, measure and format of the columns after the scores."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number with its spread over seeds, as text."""

    text: str
    """The number."""
    spread: str = ""
    """The standard deviation over seeds, where there are several."""
    error: str = ""
    """The error of a number that was estimated."""
    is_best: bool = False
    """Whether no other group of the same data has a better number."""


def compare_groups(groups: Sequence[RunGroup], split: Split) -> dict[str, list[Cell]]:
    """Return a cell for each group by the title of the column; columns that would say nothing are left out."""
    table: dict[str, list[Cell]] = {}
    for metric, task in {group.first.metric: group.first.task for group in groups}.items():
        is_own = [group.first.metric == metric for group in groups]
        cells = [
            _cell(group, "score", split, task.show, is_best=_is_best(group, groups, split)) if own else None
            for group, own in zip(groups, is_own, strict=True)
        ]
        if any(cells):
            table[f"{metric} ({split})"] = [
                cell or Cell(text="not evaluated yet" if own else notation.MISSING)
                for cell, own in zip(cells, is_own, strict=True)
            ]
    for title, name, form in _COLUMNS:
        cells = [_cell(group, name, split, form) for group in groups]
        if any(cells):
            table[title] = [cell or Cell(text=notation.MISSING) for cell in cells]
    if not any(run.num_skipped for group in groups for run in group.runs):
        del table["skipped steps"]
    return table


def _cell(
    group: RunGroup, name: str, split: Split, form: Callable[[float], str], *, is_best: bool = False
) -> Cell | None:
    spread = group.spread(name, split)
    if spread is None:
        return None
    deviation = ""
    # One that the format cannot show says nothing.
    if spread.std is not None and form(spread.std) != form(0.0):
        deviation = form(spread.std)
        if form is notation.duration:
            deviation = notation.duration(spread.std, like=spread.mean)
        elif form is notation.number:
            deviation = notation.number(spread.std, 2)
    error = group.error_note(name, split).strip(" ()")
    return Cell(text=form(spread.mean), spread=deviation, error=error, is_best=is_best)


def _is_best(group: RunGroup, groups: Sequence[RunGroup], split: Split) -> bool:
    """Return whether no other group of the same data has a better score."""
    scores = [peer.mean("score", split) for peer in groups if group.has_same_data(peer)]
    known = [score for score in scores if score is not None]
    best = max if group.first.task.higher_is_better else min
    return len(known) > 1 and group.mean("score", split) == best(known)


def summary_lines(groups: Sequence[RunGroup], split: Split) -> list[str]:
    """Return a sentence for each group with its main numbers, to paste into a paper."""
    return [line for group in groups if (line := _summary_line(group, split))]


def _summary_line(group: RunGroup, split: Split) -> str:
    score = _cell(group, "score", split, group.first.task.show)
    if score is None:
        return ""
    parts = [f"{group.first.metric} {_with_spread(score)} on {split} data"]
    forms = {
        "evals": (notation.number, "{} evaluations per sample"),
        "spectral_radius": (notation.number, "spectral radius {}"),
        "num_parameters": (notation.whole, "{} parameters"),
        "seconds": (notation.duration, "{} of training"),
    }
    for name, (form, words) in forms.items():
        if (cell := _cell(group, name, split, form)) is not None:
            parts.append(words.format(_with_spread(cell)))
    seeds = notation.plural(len(group.runs), "seed")
    deviation = ", mean ± standard deviation" if score.spread else ""
    data = group.first.config.data.name
    where = "" if data in group.label else f", {data}"
    return f"{group.label}{where}: {'; '.join(parts)} ({seeds}{deviation})."


def _with_spread(cell: Cell) -> str:
    return f"{cell.text} ± {cell.spread}" if cell.spread else cell.text
