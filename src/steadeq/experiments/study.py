"""Artefacts that compare entries: all of them evaluate, draw, judge and write in the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..recipes.registry import Scale
from ..report import RunGroup
from ..train import Run, TrainConfig
from .artefact import Artefact, Verdict
from .drawing import groups_of, save_figures, write_summary
from .entries import Entry, collect, plan, summarize
from .table import Column, table

Summary = Sequence[Mapping[str, Any]]
"""An entry each, as `summarize` returns them."""


def compare(
    *,
    name: str,
    claim: str,
    data: Mapping[Scale, str],
    duration: Mapping[Scale, str],
    entries: Callable[[Scale], Sequence[Entry]],
    figures: Callable[[Sequence[RunGroup]], Mapping[str, Figure | None]],
    judge: Callable[[Summary], list[Verdict]],
    columns: Sequence[Column],
    budgets: Sequence[int] = (),
    extend: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Artefact:
    """Declare an artefact.

    Args:
        name: Under which it is asked for.
        claim: What the paper says it shows.
        data: At each scale.
        duration: At each scale.
        entries: What is compared at a scale.
        figures: Draws the runs of the entries.
        judge: Holds the claims against the numbers.
        columns: Of the table.
        budgets: Further budgets at which every equilibrium model is evaluated.
        extend: Adds to the summary what follows from several entries, before it is judged.
    """

    def runs(scale: Scale) -> Mapping[str, TrainConfig]:
        return plan(entries(scale))

    def produce(runs: Mapping[str, Run], folder: Path, scale: Scale) -> list[Verdict]:
        chosen = entries(scale)
        summary = summarize(chosen, collect(chosen, runs, folder, budgets=budgets))
        if extend is not None:
            extend(summary)
        save_figures(figures(groups_of(chosen, runs)), folder)
        verdicts = judge(summary)
        write_summary(folder, verdicts, entries=summary)
        return verdicts

    return Artefact(
        name=name,
        claim=claim,
        data=data,
        duration=duration,
        runs=runs,
        produce=produce,
        tabulate=partial(table, columns=columns),
    )
