"""The table that compares groups of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import notation
from .group import RunGroup
from .summary import Split


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number with its spread over seeds, as text."""

    text: str
    spread: str = ""
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """A group of runs."""

    label: str
    num_seeds: int
    cells: list[Cell]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table: titles of its columns, and a row for each group."""

    columns: list[str]
    rows: list[Row]


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
    mean, spread = group.mean(name, split), group.spread(name, split)
    return Cell(
        text=form(mean) + group.error_note(name, split),
        spread="" if spread is None or form(spread) == form(0.0) else _spread(spread, mean, form),
        is_best=name == "score" and _is_best(group, groups, split),
    )


def _spread(spread: float, mean: float | None, form: Callable[[float | None], str]) -> str:
    return notation.duration(spread, like=mean) if form is notation.duration else form(spread)


def _is_best(group: RunGroup, groups: Sequence[RunGroup], split: Split) -> bool:
    """Return whether no other group of the same data has a better score."""
    scores = [peer.mean("score", split) for peer in groups if peer.data == group.data]
    known = [value for value in scores if value is not None]
    best = max(known) if group.first.config.data.task.higher_is_better else min(known)
    return len(known) > 1 and group.mean("score", split) == best


def _known(group: RunGroup, name: str, split: Split, metric: str) -> bool:
    return (not metric or group.first.metric == metric) and group.mean(name, split) is not None


def _score_format(metric: str) -> Callable[[float | None], str]:
    return lambda value: notation.score(value, metric)


def _residual(value: float | None) -> str:
    return notation.score(value, "residual")


def _whole(value: float | None) -> str:
    return notation.MISSING if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
