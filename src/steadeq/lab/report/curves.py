"""Figures of what happened during training, for several runs; each is None where no run recorded what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .. import notation
from ..run.record import Array, Event, RunRecord
from .groups import Band, RunGroup, combine
from .panels import Section, panels
from .style import GRAY, add_legend, fit, line_style, new_axes, styled, use_log_scale

Direction = Literal["forward", "backward"]


def _look(groups: Sequence[RunGroup], index: int) -> dict[str, Any]:
    """Return color and line style of a group: its own, or those of its place."""
    place = groups[index].place
    return line_style(index if place is None else place)


def residual_figure(groups: Sequence[RunGroup], direction: Direction = "forward") -> Figure | None:
    """Show the relative residual at the end of the solves of training."""
    return _plot(groups, _curves(groups, "train", f"{direction}_residual"), f"{direction} residual", log=True)


def evals_figure(groups: Sequence[RunGroup], direction: Direction = "forward") -> Figure | None:
    """Show the evaluations (backward: products with the Jacobian) that a solve of training takes."""
    bands = _curves(groups, "train", f"{direction}_evals")
    edges = np.concatenate([edge for band in bands for edge in (band.low, band.high)])
    if len(edges) and edges.min() == edges.max():
        # A budget that is always spent is one number, which the table has.
        return None
    figure = _plot(groups, bands, f"{direction} evaluations")
    if figure is not None:
        figure.axes[0].set_ylim(bottom=0)
    return figure


def jacobian_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the squared Jacobian norm by state dimension at each evaluation."""
    return _plot(groups, _curves(groups, "evaluation", "jacobian_norm"), "‖J‖² / d", log=True)


def spectral_radius_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the mean spectral radius at each evaluation with its error as bars, and a line at 1."""
    bands, errors = (_curves(groups, "evaluation", f"spectral_radius{suffix}") for suffix in ("", "_error"))
    figure = _plot(groups, bands, "spectral radius ρ(J)")
    if figure is None:
        return None
    axes = figure.axes[0]
    for index, (band, error) in enumerate(zip(bands, errors, strict=True)):
        steps, known, at = np.intersect1d(band.x, error.x, return_indices=True)
        if len(steps):
            bars = {"linestyle": "none", "elinewidth": 1, "capsize": 2, "color": _look(groups, index)["color"]}
            axes.errorbar(steps, band.mean[known], error.mean[at], **bars)
    low, high = axes.get_ylim()
    axes.axhline(1.0, color=GRAY, linewidth=1.2, linestyle=(0, (3, 2)), zorder=1)
    axes.set_ylim(max(min(low, 0.9), 0), max(high, 1.1))
    return figure


def power_method_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the spectral radius by Arnoldi as lines, and beside it the paper's power method as crosses."""
    figure = spectral_radius_figure(groups)
    if figure is None:
        return None
    for index, band in enumerate(_curves(groups, "evaluation", "spectral_radius_rayleigh")):
        crosses = _look(groups, index) | {"linestyle": "none", "marker": "x", "markersize": 5}
        figure.axes[0].plot(band.x, band.mean, **crosses)
    return figure


def residual_by_jacobian_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the residual of solves on validation data against the squared Jacobian norm, one point an evaluation."""
    with styled():
        figure, axes = new_axes("‖J‖² / d", "residual on validation data")
        handles = {}
        for index, group in enumerate(groups):
            lines = [line for run in group.runs for line in run.validations]
            pairs = [(line.jacobian_norm, line.forward_residual) for line in lines]
            known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64)
            if len(known):
                marks = {"linestyle": "none", "marker": "os^Dv"[index % 5], "markersize": 4.5, "alpha": 0.8}
                (handles[group.label],) = axes.plot(*known.T, **_look(groups, index) | marks)
        if not handles:
            return None
        use_log_scale(axes, "x")
        use_log_scale(axes, "y")
        add_legend(figure, handles)
    return figure


def score_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the task's metric on validation data against the step."""
    return _format_scores(_plot(groups, _curves(groups, "evaluation", "score"), ""), groups)


def score_by_evals_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the task's metric against the evaluation budget, from evaluation.json."""
    bands = [combine(_score_by_evals(run) for run in group.runs) for group in groups]
    return _format_scores(_plot(groups, bands, "", xlabel="evaluation budget", marker="o"), groups)


def loop_figure(groups: Sequence[RunGroup], *, training_depth: int) -> Figure | None:
    """Show the task's metric against the evaluations of a looped block, and a line at the depth of training.

    Args:
        groups: The runs, grouped by their configs.
        training_depth: Number of evaluations in training.
    """
    bands = [combine(_score_by_evals(run) for run in group.runs) for group in groups]
    figure = _format_scores(_plot(groups, bands, "", xlabel="evaluations of the block", marker="o"), groups)
    if figure is not None:
        axes = figure.axes[0]
        numbers = sorted({int(x) for band in bands for x in band.x})
        with styled():
            axes.set_xscale("log", base=2)
            axes.set_xlim(numbers[0] * 0.85, numbers[-1] * 1.15)
            axes.set_xticks(numbers, [str(number) for number in numbers])
            axes.minorticks_off()
            axes.axvline(training_depth, color=GRAY, linewidth=1.2, linestyle=(0, (3, 2)), zorder=1)
            axes.set_ylim(-0.03, 1.03)
    return figure


def validation_evals_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the evaluations that a solve takes on validation data, at each evaluation of the model.

    Args:
        groups: The runs, grouped by their configs.
    """
    figure = _plot(groups, _curves(groups, "evaluation", "forward_evals"), "evaluations")
    if figure is not None:
        figure.axes[0].set_ylim(bottom=0)
    return figure


def score_by_time_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the task's metric on validation data against the seconds of training, one line a run."""
    with styled():
        figure, axes = new_axes("training time in seconds", "")
        handles = {}
        for index, group in enumerate(groups):
            for run in group.runs:
                steps, elapsed = run.elapsed()
                at, scores = run.series("evaluation", "score")
                if len(steps) and len(at):
                    # Seeds take different times, so that there is no common axis to average on.
                    seconds = np.interp(at, steps, elapsed)
                    style = _look(groups, index) | {"marker": _marker(seconds), "markersize": 3}
                    (handles[group.label],) = axes.plot(seconds, scores, **style)
        if not handles:
            return None
        axes.set_xlim(left=0)
        add_legend(figure, handles)
    return _format_scores(figure, groups)


def memory_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the peak memory of each group as bars, unless all take the same."""
    means = [(index, group.label, group.mean("memory_mb", "validation")) for index, group in enumerate(groups)]
    known = [(index, label, mean) for index, label, mean in means if mean is not None]
    if not known:
        return None
    sizes = [mean for _, _, mean in known]
    if len(known) > 1 and max(sizes) < 1.02 * min(sizes):
        # Bars of one length say nothing that the table does not say.
        return None
    with styled():
        figure, axes = new_axes("", "", height=0.4 + 0.62 * len(known))
        for row, (index, label, mean) in enumerate(known):
            bars = axes.barh(row, mean, height=0.34, color=_look(groups, index)["color"])
            axes.bar_label(bars, [notation.memory(mean)], padding=4, fontsize=9.5)
            # Above its bar, where a long name takes nothing from the width of the bars.
            axes.text(0, row - 0.26, fit(label), va="bottom", fontsize=9.5)
        axes.set(yticks=[], ylim=(len(known) - 0.7, -0.7))
        axes.set_xmargin(0.22)
        # Every bar has its number.
        axes.set_axis_off()
    return figure


def curve_sections(groups: Sequence[RunGroup]) -> list[Section]:
    """Return all the figures of training that the runs have something to show in.

    Args:
        groups: The runs, grouped by their configs.
    """
    higher = groups[0].first.task.higher_is_better
    better = "Higher is better" if higher else "Lower is better"
    task = panels(
        (score_figure(groups), "Task metric while training", f"{better}; measured on validation data."),
        (
            score_by_evals_figure(groups),
            "Task metric by evaluation budget",
            "A stable model is as good with few evaluations as with many.",
        ),
        (
            score_by_time_figure(groups),
            "Task metric by training time",
            f"{better}, and further left is sooner; the time of evaluations is not counted.",
        ),
    )
    convergence = panels(
        (
            residual_figure(groups),
            "Forward residual",
            "How far from its equilibrium the state still is when the budget of a training step is spent.",
        ),
        (
            residual_figure(groups, "backward"),
            "Backward residual",
            "How far from the exact implicit gradient the gradient still is.",
        ),
        (evals_figure(groups), "Forward evaluations", "Evaluations of f that a sample takes in a training step."),
        (
            evals_figure(groups, "backward"),
            "Backward evaluations",
            "Vector-Jacobian products that a sample's gradient takes in a training step.",
        ),
    )
    stability = panels(
        (
            jacobian_figure(groups),
            "Jacobian norm",
            "Squared Frobenius norm of the Jacobian at the equilibrium, divided by the state's dimension: "
            "this is what the penalty lowers.",
        ),
        (
            spectral_radius_figure(groups),
            "Spectral radius",
            "Below the line at 1, plain fixed-point iteration converges near the equilibrium. Bars are errors of the "
            "estimate, over samples where they are known.",
        ),
        (memory_figure(groups), "Peak memory", "Memory of the GPU, or of the whole process on a CPU."),
    )
    found = (("Task", task), ("Convergence of the solves", convergence), ("Jacobian and memory", stability))
    return [Section(title=title, panels=figures) for title, figures in found if figures]


def _curves(groups: Sequence[RunGroup], event: Event, name: str) -> list[Band]:
    """Return a field of the lines of each group, as a mean over its seeds."""
    return [combine(run.series(event, name) for run in group.runs) for group in groups]


def _plot(
    groups: Sequence[RunGroup],
    bands: Sequence[Band],
    ylabel: str,
    *,
    xlabel: str = "step",
    log: bool = False,
    marker: str | None = None,
) -> Figure | None:
    bands = [band.positive() if log else band for band in bands]
    if not any(len(band) for band in bands):
        return None
    with styled():
        figure, axes = new_axes(xlabel, ylabel)
        handles = {}
        for index, (group, band) in enumerate(zip(groups, bands, strict=True)):
            if not len(band):
                continue
            style = _look(groups, index) | {"marker": marker or _marker(band.x), "markersize": 3.5}
            (handles[group.label],) = axes.plot(band.x, band.mean, **style)
            if band.has_spread:
                axes.fill_between(
                    band.x, band.low, band.high, color=_look(groups, index)["color"], alpha=0.18, linewidth=0
                )
        if log:
            use_log_scale(axes)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(_step_label))
        add_legend(figure, handles)
    return figure


def _format_scores(figure: Figure | None, groups: Sequence[RunGroup]) -> Figure | None:
    """Name the metric, show shares in percent, and errors that span powers of ten on a logarithmic axis."""
    if figure is None:
        return None
    axes, task = figure.axes[0], groups[0].first.task
    with styled():
        axes.set_ylabel(task.title or task.metric)
        if task.is_share:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
        elif not task.higher_is_better and all((np.asarray(line.get_ydata()) > 0).all() for line in axes.lines):
            use_log_scale(axes)
    return figure


def _score_by_evals(run: RunRecord) -> tuple[Array, Array]:
    rows = [] if run.evaluation is None else [row for row in run.evaluation.rows if row.score is not None]
    return np.array([row.max_evals for row in rows]), np.array([row.score for row in rows], dtype=np.float64)


def _marker(x: Array) -> str | None:
    """Return a marker for curves of which a line alone would show little or nothing."""
    return "o" if len(x) < 12 else None


def _step_label(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
