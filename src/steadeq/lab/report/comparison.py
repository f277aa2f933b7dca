"""The table that compares groups of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..runs import Split, Spread
from . import notation
from .groups import RunGroup


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number with its spread over seeds, as text."""

    text: str
    """The number."""
    spread: str = ""
    """The standard deviation over seeds, where there are several."""
    is_best: bool = False
    """Whether no other group of the same data has a better number."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A group of runs."""

    label: str
    """Name of the group."""
    num_seeds: int
    """Number of runs."""
    cells: list[Cell]
    """A cell for each column."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table of groups of runs."""

    columns: list[str]
    """Titles of the columns."""
    rows: list[Row]
    """A row for each group."""


def compare_groups(groups: Sequence[RunGroup], split: Split) -> Comparison:
    """Return the numbers of each group; columns that would say nothing are left out."""
    metrics = list(dict.fromkeys(group.first.metric for group in groups))
    columns: list[tuple[str, str, Callable[[float | None], str], str]] = [
        (f"{metric} ({split})", "score", _score_format(metric), metric) for metric in metrics
    ]
    columns += [
        ("evaluations per sample", "evals", notation.number, ""),
        ("forward residual", "residual", _residual, ""),
        ("‖J‖²/d", "jacobian_norm", notation.number, ""),
        ("ρ(J)", "spectral_radius", notation.number, ""),
        ("forward evaluations per step", "forward_evals", notation.number, ""),
        ("backward evaluations per step", "backward_evals", notation.number, ""),
        ("time per step", "seconds_per_step", notation.duration, ""),
        ("training time", "seconds", notation.duration, ""),
        ("peak memory", "memory_mb", notation.memory, ""),
        ("parameters", "num_parameters", _whole, ""),
        ("skipped steps", "num_skipped", _whole, ""),
    ]
    shown = [column for column in columns if any(_known(group, column[1], split, column[3]) for group in groups)]
    if not any(run.num_skipped for group in groups for run in group.runs):
        shown.pop()
    rows = [
        Row(
            label=group.label,
            num_seeds=len(group.runs),
            cells=[_cell(group, groups, name, form, split, metric) for _, name, form, metric in shown],
        )
        for group in groups
    ]
    return Comparison(columns=[title for title, *_ in shown], rows=rows)


def _cell(
    group: RunGroup,
    groups: Sequence[RunGroup],
    name: str,
    form: Callable[[float | None], str],
    split: Split,
    metric: str,
) -> Cell:
    if not _known(group, name, split, metric):
        return Cell(text="not evaluated yet" if name == "score" and group.first.metric == metric else notation.MISSING)
    spread = group.spread(name, split)
    assert spread is not None
    return Cell(
        text=form(spread.mean) + group.error_note(name, split),
        spread=_deviation(spread, form),
        is_best=name == "score" and _is_best(group, groups, split),
    )


def _deviation(spread: Spread, form: Callable[[float | None], str]) -> str:
    """Return the standard deviation as text; nothing if there is none, or none that the form can show."""
    if spread.std is None or form(spread.std) == form(0.0):
        return ""
    return notation.duration(spread.std, like=spread.mean) if form is notation.duration else form(spread.std)


def _is_best(group: RunGroup, groups: Sequence[RunGroup], split: Split) -> bool:
    """Return whether no other group of the same data has a better score."""
    scores = [peer.mean("score", split) for peer in groups if group.has_same_data(peer)]
    known = [value for value in scores if value is not None]
    best = max(known) if group.first.task.higher_is_better else min(known)
    return len(known) > 1 and group.mean("score", split) == best


def _known(group: RunGroup, name: str, split: Split, metric: str) -> bool:
    return (not metric or group.first.metric == metric) and group.mean(name, split) is not None


def _score_format(metric: str) -> Callable[[float | None], str]:
    return lambda value: notation.score(value, metric)


def _residual(value: float | None) -> str:
    return notation.score(value, "residual")


def _whole(value: float | None) -> str:
    return notation.MISSING if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
