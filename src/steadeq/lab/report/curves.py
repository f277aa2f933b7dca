"""Figures of what happened during training, for several runs; each is None where no run recorded what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..runs import Array, RunRecord
from . import notation
from .groups import Band, RunGroup, combine, curve
from .panels import Section, panels
from .style import GRAY, add_legend, fit, look, new_axes, power_label, styled, use_log_scale

Direction = Literal["forward", "backward"]

_MARKERS = "os^Dv"
_METRICS = {"accuracy": "accuracy", "mse": "mean squared error"}


def residual_figure(groups: Sequence[RunGroup], direction: Direction = "forward") -> Figure | None:
    """Show the relative residual at the end of the solves of training.

    Args:
        groups: The runs.
        direction: Which solves.
    """
    bands = [curve(group, "train", f"{direction}_residual") for group in groups]
    return _plot(groups, [_positive(band) for band in bands], ylabel=f"{direction} residual", log=True)


def evals_figure(groups: Sequence[RunGroup], direction: Direction = "forward") -> Figure | None:
    """Show the evaluations (backward: products with the Jacobian) that a solve of training takes.

    Args:
        groups: The runs.
        direction: Which solves.
    """
    bands = [curve(group, "train", f"{direction}_evals") for group in groups]
    figure = _plot(groups, bands, ylabel=f"{direction} evaluations")
    if figure is not None:
        figure.axes[0].set_ylim(bottom=0)
    return figure


def jacobian_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the squared Jacobian norm by state dimension at each evaluation."""
    bands = [_positive(curve(group, "evaluation", "jacobian_norm")) for group in groups]
    return _plot(groups, bands, ylabel="‖J‖² / d", log=True)


def spectral_radius_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the mean spectral radius at each evaluation with its error as bars, and a line at 1."""
    bands = [curve(group, "evaluation", "spectral_radius") for group in groups]
    figure = _plot(groups, bands, ylabel="spectral radius ρ(J)")
    if figure is not None:
        axes = figure.axes[0]
        for index, (group, band) in enumerate(zip(groups, bands, strict=True)):
            errors = curve(group, "evaluation", "spectral_radius_error")
            known = np.isin(band.x, errors.x)
            bars = errors.mean[np.isin(errors.x, band.x)]
            if known.any():
                axes.errorbar(
                    band.x[known],
                    band.mean[known],
                    yerr=bars,
                    linestyle="none",
                    elinewidth=1,
                    capsize=2,
                    color=look(index)["color"],
                )
        low, high = axes.get_ylim()
        axes.axhline(1.0, color=GRAY, linewidth=1.2, linestyle=(0, (3, 2)), zorder=1)
        axes.set_ylim(max(min(low, 0.9), 0), max(high, 1.1))
    return figure


def power_method_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the spectral radius by Arnoldi as lines, and beside it the paper's power method as crosses."""
    figure = spectral_radius_figure(groups)
    if figure is None:
        return None
    axes = figure.axes[0]
    for index, group in enumerate(groups):
        band = curve(group, "evaluation", "spectral_radius_rayleigh")
        axes.plot(band.x, band.mean, linestyle="none", marker="x", markersize=5, color=look(index)["color"])
    return figure


def residual_by_jacobian_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the residual of solves on validation data against the squared Jacobian norm, one point an evaluation."""
    with styled():
        figure, axes = new_axes("‖J‖² / d", "residual on validation data")
        handles, labels = [], []
        for index, group in enumerate(groups):
            x, y = _columns(
                [
                    (line.jacobian_norm, line.forward_residual)
                    for run in group.runs
                    for line in run.validations
                    if line.jacobian_norm is not None and line.forward_residual is not None
                ]
            )
            if len(x):
                color, marker = look(index)["color"], _MARKERS[index % len(_MARKERS)]
                handles += axes.plot(x, y, linestyle="none", marker=marker, markersize=4.5, color=color, alpha=0.8)
                labels.append(group.label)
        if not handles:
            return None
        use_log_scale(axes)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power_label(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        add_legend(figure, handles, labels)
    return figure


def score_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the task's metric on validation data against the step."""
    return _score_plot(groups, [curve(group, "evaluation", "score") for group in groups], "step")


def score_by_evals_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the task's metric against the evaluation budget, from evaluation.json."""
    bands = [combine(_score_by_evals(run) for run in group.runs) for group in groups]
    return _score_plot(groups, bands, "evaluation budget", marker="o")


def score_by_time_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the task's metric on validation data against the seconds of training, one line a run."""
    with styled():
        figure, axes = new_axes(
            "training time in seconds", _METRICS.get(groups[0].first.metric, groups[0].first.metric)
        )
        handles = {}
        for index, group in enumerate(groups):
            for run in group.runs:
                x, y = _score_by_time(run)
                if len(x):
                    # Seeds take different times, so that there is no common axis to average on.
                    (handles[group.label],) = axes.plot(x, y, marker=_marker(x), markersize=3, **look(index))
        if not handles:
            return None
        axes.set_xlim(left=0)
        _format_scores(axes, groups)
        add_legend(figure, list(handles.values()), list(handles))
    return figure


def memory_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Show the peak memory of each group as bars."""
    values = [group.mean("memory_mb", "validation") for group in groups]
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    if not known:
        return None
    with styled():
        figure, axes = new_axes("", "", height=0.4 + 0.62 * len(known))
        bars = axes.barh(
            range(len(known)), [value for _, value in known], height=0.34, color=[look(i)["color"] for i, _ in known]
        )
        axes.bar_label(bars, [notation.memory(value) for _, value in known], padding=4, fontsize=9.5)
        for row, (index, _) in enumerate(known):
            # Above its bar, where a long name takes nothing from the width of the bars.
            axes.text(0, row - 0.26, fit(groups[index].label), va="bottom", fontsize=9.5)
        axes.set(yticks=[], ylim=(len(known) - 0.7, -0.7))
        axes.set_xmargin(0.22)
        # Every bar has its number.
        axes.set_axis_off()
    return figure


def curve_sections(groups: Sequence[RunGroup]) -> list[Section]:
    """Return all the figures of training that the runs have something to show in."""
    higher = groups[0].first.task.higher_is_better
    better = "Higher is better" if higher else "Lower is better"
    task = panels(
        (score_figure(groups), "Task metric while training", f"{better}; measured on validation data."),
        (
            score_by_evals_figure(groups),
            "Task metric by evaluation budget",
            "A stable model is as good with few evaluations as with many: look for the curve that is flat soonest.",
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
            "what the penalty holds down.",
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


def _plot(
    groups: Sequence[RunGroup],
    bands: Sequence[Band],
    *,
    ylabel: str,
    xlabel: str = "step",
    log: bool = False,
    marker: str | None = None,
) -> Figure | None:
    if not any(len(band) for band in bands):
        return None
    with styled():
        figure, axes = new_axes(xlabel, ylabel)
        handles, labels = [], []
        for index, (group, band) in enumerate(zip(groups, bands, strict=True)):
            if not len(band):
                continue
            symbol = marker or _marker(band.x)
            handles += axes.plot(band.x, band.mean, marker=symbol, markersize=3.5, **look(index))
            labels.append(group.label)
            if band.has_spread:
                axes.fill_between(band.x, band.low, band.high, color=look(index)["color"], alpha=0.18, linewidth=0)
        if log:
            use_log_scale(axes)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(_step_label))
        add_legend(figure, handles, labels)
    return figure


def _score_plot(
    groups: Sequence[RunGroup], bands: Sequence[Band], xlabel: str, marker: str | None = None
) -> Figure | None:
    metric = groups[0].first.metric
    figure = _plot(groups, bands, ylabel=_METRICS.get(metric, metric), xlabel=xlabel, marker=marker)
    if figure is not None:
        with styled():
            _format_scores(figure.axes[0], groups)
    return figure


def _format_scores(axes: Axes, groups: Sequence[RunGroup]) -> None:
    """Show accuracies in percent, and errors that span powers of ten on a logarithmic axis."""
    if groups[0].first.metric == "accuracy":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
        return
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    if (values > 0).all() and not groups[0].first.task.higher_is_better:
        use_log_scale(axes)


def _score_by_evals(run: RunRecord) -> tuple[Array, Array]:
    rows = () if run.evaluation is None else run.evaluation.rows
    return _columns([(row.max_evals, row.score) for row in rows if row.score is not None])


def _score_by_time(run: RunRecord) -> tuple[Array, Array]:
    steps, elapsed = run.elapsed()
    at, scores = run.series("evaluation", "score")
    if not len(steps) or not len(at):
        return _columns([])
    return np.interp(at, steps, elapsed), scores


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _positive(band: Band) -> Band:
    """Leave out what a logarithmic axis cannot show; a lower edge at zero is lifted near the mean."""
    kept = band.mean > 0
    low = np.maximum(band.low[kept], band.mean[kept] * 1e-3)
    return Band(x=band.x[kept], mean=band.mean[kept], low=low, high=band.high[kept])


def _marker(x: Array) -> str | None:
    """Return a marker for curves of which a line alone would show little or nothing."""
    return "o" if len(x) < 12 else None


def _step_label(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
