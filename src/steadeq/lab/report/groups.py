"""Runs that differ only in their seed, taken together: their numbers, and their curves on common steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..notation import error_note, setting
from ..run.record import Array, EvaluationRow, RunRecord, Split, Spread, ValidationLine, spread
from ..serialization import config_to_json, flatten

MAX_POINTS = 120
"""Largest number of points of a curve: more than a small figure can show."""

_SHORT = {"regularizer.weight": "γ", "regularizer.probability": "p", "solver.max_evals": "budget"}


@dataclass(frozen=True, kw_only=True, eq=False)
class RunGroup:
    """Runs of one config with different seeds."""

    label: str
    """Name of the group in legends and tables."""
    runs: tuple[RunRecord, ...]
    """One for each seed."""
    place: int | None = None
    """Place of its color and line style; None for its place among the groups of a figure."""

    @property
    def first(self) -> RunRecord:
        """One of the runs, for what they have in common."""
        return self.runs[0]

    def has_same_data(self, other: RunGroup) -> bool:
        """Return whether the runs of another group learned from the same data."""
        return self.first.config.data == other.first.config.data

    def spread(self, name: str, split: Split) -> Spread | None:
        """Return one of the numbers of `measure` over the runs that have it."""
        return spread(measure(run, name, split) for run in self.runs)

    def mean(self, name: str, split: Split) -> float | None:
        """Return the mean of one of the numbers of `measure` over the runs that have it."""
        found = self.spread(name, split)
        return None if found is None else found.mean

    def error_note(self, name: str, split: Split) -> str:
        """Return the error of a number that was estimated, as text; nothing where there is none."""
        if f"{name}_error" not in _MEASURES:
            return ""
        return error_note(self.mean(f"{name}_error", split), self.mean(f"{name}_unknown", split))


def measure(run: RunRecord, name: str, split: Split) -> float | None:
    """Return one of the numbers that runs are compared by, or None if it was not recorded.

    `score`, `evals` and `residual` are those of a split, with the evaluation budget of the config (on test data, of the
    row of evaluation.json that is nearest below it). `jacobian_norm` and `spectral_radius`, with its error and the
    share of samples for which that is not known, are those of the latest evaluation on validation data.
    `forward_evals`, `backward_evals` and `seconds_per_step` are means over all steps of training.
    """
    return _MEASURES[name](run, split)


def group_runs(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Put runs together whose configs differ only in the seed, in the order of their first appearance.

    Args:
        runs: Records of the runs.
    """
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        config = replace(run.config, loop=replace(run.config.loop, seed=0))
        groups.setdefault(config_to_json(config), []).append(run)
    labels = _labels([members[0] for members in groups.values()])
    return [RunGroup(label=label, runs=tuple(runs)) for label, runs in zip(labels, groups.values(), strict=True)]


def differing_fields(runs: Sequence[RunRecord]) -> list[str]:
    """Return the names of the config fields in which some of the runs differ, in the order of the config."""
    configs = [flatten(run.config) for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """Name groups, of each of which one run is given, by recipe; where recipes repeat, by fields that tell them apart.

    A recipe that all of them share is not repeated in every legend.
    """
    has_one_recipe = len({run.config.recipe for run in runs}) == 1
    labels = []
    for run in runs:
        recipe = run.config.recipe
        peers = [other for other in runs if other.config.recipe == recipe]
        config = flatten(run.config)
        names = [name for name in differing_fields(peers) if name != "loop.seed"]
        # The weight of the penalty is what this library is about.
        names.sort(key=lambda name: name != "regularizer.weight")
        parts = [f"{_SHORT.get(name, name)} = {setting(config.get(name))}" for name in names[:2]]
        labels.append(", ".join(parts if parts and has_one_recipe else [recipe, *parts]))
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({run.name})" for label, run in zip(labels, runs, strict=True)]


# Numbers


def _evaluated(run: RunRecord, split: Split) -> EvaluationRow | ValidationLine:
    """Return the evaluation of a run with the budget of its config; one without numbers if there is none."""
    if split == "validation":
        return _latest(run)
    budget = run.config.evaluation_solver.max_evals
    rows = run.evaluation.rows if run.evaluation is not None and run.evaluation.split == split else ()
    within = [row for row in rows if row.max_evals <= budget]
    return max(within, key=lambda row: row.max_evals, default=EvaluationRow(max_evals=budget))


def _latest(run: RunRecord) -> ValidationLine:
    return run.validations[-1] if run.validations else ValidationLine(step=0)


_MEASURES: dict[str, Callable[[RunRecord, Split], float | None]] = {
    "score": lambda run, split: _evaluated(run, split).score,
    "evals": lambda run, split: _evaluated(run, split).forward_evals,
    "residual": lambda run, split: _evaluated(run, split).forward_residual,
    "jacobian_norm": lambda run, _: _latest(run).jacobian_norm,
    "spectral_radius": lambda run, _: _latest(run).spectral_radius,
    "spectral_radius_error": lambda run, _: _latest(run).spectral_radius_error,
    "spectral_radius_unknown": lambda run, _: _latest(run).spectral_radius_unknown,
    "forward_evals": lambda run, _: run.mean("forward_evals"),
    "backward_evals": lambda run, _: run.mean("backward_evals"),
    "seconds_per_step": lambda run, _: run.seconds_per_step,
    "seconds": lambda run, _: run.seconds,
    "memory_mb": lambda run, _: max((n for line in run.training if (n := line.memory_mb) is not None), default=None),
    "num_parameters": lambda run, _: run.num_parameters,
    "num_skipped": lambda run, _: run.num_skipped,
}


# Curves


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """A curve with its extremes over seeds."""

    x: Array
    mean: Array
    low: Array
    high: Array

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.x)

    @property
    def has_spread(self) -> bool:
        """Whether seeds differ anywhere."""
        return bool((self.high > self.low).any())

    def positive(self) -> Band:
        """Return what a logarithmic axis can show; a lower edge at zero is lifted near the mean."""
        kept = self.mean > 0
        mean = self.mean[kept]
        return Band(x=self.x[kept], mean=mean, low=np.maximum(self.low[kept], mean * 1e-3), high=self.high[kept])


def combine(pairs: Iterable[tuple[Array, Array]]) -> Band:
    """Return the mean and the extremes of several curves, each given as (x, y), on common points.

    Long curves become means over `MAX_POINTS` intervals of x.

    Example:
        >>> x = np.array([1.0, 2.0])
        >>> band = combine([(x, np.array([1.0, 2.0])), (x, np.array([3.0, 2.0]))])
        >>> band.mean.tolist(), band.low.tolist(), band.high.tolist()
        ([2.0, 2.0], [1.0, 2.0], [3.0, 2.0])
    """
    curves = [(x, y) for x, y in pairs if len(x)]
    if not curves:
        return Band(x=np.array([]), mean=np.array([]), low=np.array([]), high=np.array([]))
    points = np.unique(np.concatenate([x for x, _ in curves]))
    indices = [np.searchsorted(points, x) for x, _ in curves]
    if len(points) > MAX_POINTS:
        edges = np.linspace(0, points[-1], MAX_POINTS + 1)
        points = (edges[:-1] + edges[1:]) / 2
        # Of the interval (edges[i], edges[i + 1]] that x is in.
        indices = [np.clip(np.searchsorted(edges, x) - 1, 0, MAX_POINTS - 1) for x, _ in curves]
    table = np.full((len(curves), len(points)), np.nan)
    for row, index, (_, y) in zip(table, indices, curves, strict=True):
        counts = np.bincount(index, minlength=len(points))
        np.divide(np.bincount(index, weights=y, minlength=len(points)), counts, out=row, where=counts > 0)
    known = np.isfinite(table).any(axis=0)
    table = table[:, known]
    return Band(
        x=points[known],
        mean=np.nanmean(table, axis=0),
        low=np.nanmin(table, axis=0),
        high=np.nanmax(table, axis=0),
    )
