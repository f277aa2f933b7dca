"""Curves of several runs on common steps: bins, means and spreads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .group import RunGroup
from .summary import Array

MAX_POINTS = 120
"""Points of a curve: more than a small figure can show."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """A curve with its spread over seeds."""

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


def curve(group: RunGroup, event: str, name: str) -> Band:
    """Return what the runs of a group recorded, with the mean and the extremes over seeds.

    Long curves become means over `MAX_POINTS` intervals of steps.
    """
    return combine([run.series(event, name) for run in group.runs])


def combine(pairs: Iterable[tuple[Array, Array]]) -> Band:
    """Return the mean and the extremes of several curves, each given as (x, y), on common points.

    Example:
        >>> x = np.array([1.0, 2.0])
        >>> band = combine([(x, np.array([1.0, 2.0])), (x, np.array([3.0, 2.0]))])
        >>> band.mean.tolist(), band.low.tolist(), band.high.tolist()
        ([2.0, 2.0], [1.0, 2.0], [3.0, 2.0])
    """
    curves = [(x, y) for x, y in pairs if len(x)]
    points = np.unique(np.concatenate([x for x, _ in curves])) if curves else np.array([])
    if len(points) > MAX_POINTS:
        edges = np.linspace(0, points[-1], MAX_POINTS + 1)
        rows = [_bin(x, y, edges) for x, y in curves]
        points = (edges[:-1] + edges[1:]) / 2
    else:
        rows = [_place(x, y, points) for x, y in curves]
    return _reduce(points, rows)


def _bin(x: Array, y: Array, edges: Array) -> Array:
    """Return the means of y over the intervals (edges[i], edges[i+1]]; NaN where there is nothing."""
    index = np.clip(np.searchsorted(edges, x, side="left") - 1, 0, len(edges) - 2)
    counts = np.bincount(index, minlength=len(edges) - 1)
    sums = np.bincount(index, weights=y, minlength=len(edges) - 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _place(x: Array, y: Array, points: Array) -> Array:
    values = np.full(len(points), np.nan)
    values[np.searchsorted(points, x)] = y
    return values


def _reduce(points: Array, rows: Sequence[Array]) -> Band:
    table = np.stack(rows) if rows else np.empty((0, 0))
    known = np.isfinite(table)
    kept = known.any(axis=0) if rows else np.zeros(0, dtype=bool)
    table, known = table[:, kept], known[:, kept]
    return Band(
        x=points[kept],
        mean=np.where(known, table, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1),
        low=np.where(known, table, np.inf).min(axis=0, initial=np.inf),
        high=np.where(known, table, -np.inf).max(axis=0, initial=-np.inf),
    )
