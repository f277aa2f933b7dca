"""The table that compares groups of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..runs import Split
from . import notation
from .groups import RunGroup

_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("evaluations per sample", "evals", notation.number),
    ("forward residual", "residual", notation.small),
    ("‖J‖²/d", "jacobian_norm", notation.number),
    ("ρ(J)", "spectral_radius", notation.number),
    ("forward evaluations per step", "forward_evals", notation.number),
    ("backward evaluations per step", "backward_evals", notation.number),
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
    is_best: bool = False
    """Whether no other group of the same data has a better number."""


def compare_groups(groups: Sequence[RunGroup], split: Split) -> dict[str, list[Cell]]:
    """Return a cell for each group by the title of the column; columns that would say nothing are left out."""
    table: dict[str, list[Cell]] = {}
    for metric in dict.fromkeys(group.first.metric for group in groups):
        form = partial(notation.score, metric=metric)
        is_own = [group.first.metric == metric for group in groups]
        cells = [
            _cell(group, "score", split, form, is_best=_is_best(group, groups, split)) if own else None
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
        is_time = form is notation.duration
        deviation = notation.duration(spread.std, like=spread.mean) if is_time else form(spread.std)
    return Cell(text=form(spread.mean) + group.error_note(name, split), spread=deviation, is_best=is_best)


def _is_best(group: RunGroup, groups: Sequence[RunGroup], split: Split) -> bool:
    """Return whether no other group of the same data has a better score."""
    scores = [peer.mean("score", split) for peer in groups if group.has_same_data(peer)]
    known = [score for score in scores if score is not None]
    best = max if group.first.task.higher_is_better else min
    return len(known) > 1 and group.mean("score", split) == best(known)
