"""The figure of a diagnosis. This file needs matplotlib, and is imported when a figure is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from torch import Tensor

from .verdict import Verdict
from .words import PHRASES

if TYPE_CHECKING:
    from .result import Diagnosis

_COLORS = {
    Verdict.CONVERGES: "#2a78d6",
    Verdict.CYCLES: "#8b7a12",
    Verdict.DRIFTS: "#d1620f",
    Verdict.DIVERGES: "#c2509b",
}
_STYLES: dict[Verdict, Any] = {
    Verdict.CONVERGES: "-",
    Verdict.CYCLES: (0, (1, 1)),
    Verdict.DRIFTS: (0, (5, 1.5)),
    Verdict.DIVERGES: (0, (5, 1, 1, 1)),
}
_MARKS = {Verdict.CONVERGES: "o", Verdict.CYCLES: "D", Verdict.DRIFTS: "s", Verdict.DIVERGES: "^"}
"""Lines over lines are told apart by more than their color."""
_DEPTH = {"color": "#7d8691", "linewidth": 1.2, "linestyle": (0, (3, 2))}
_HUGE = 1e300
"""What is beyond, or below one over it, is left out, as the arithmetic of the axes would overflow."""


def draw(diagnosis: Diagnosis) -> Figure:
    """Return the figure; see `Diagnosis.plot`."""
    num_panels = 1 if diagnosis.metric is None else 2
    figure = Figure(figsize=(5.6, 0.6 + 2.7 * num_panels), layout="constrained")
    axes = figure.add_subplot(num_panels, 1, 1, ylabel="relative residual", yscale="log")
    _draw_residual(axes, diagnosis.residual, diagnosis.verdicts)
    if diagnosis.metric is not None:
        axes = figure.add_subplot(num_panels, 1, 2, ylabel=diagnosis.metric_name)
        _draw_metric(axes, diagnosis.metric, diagnosis.verdict)
        # What is better if it is lower, such as a perplexity, begins far above where it ends.
        if not diagnosis.higher_is_better and bool((diagnosis.metric[1:] > 1 / _HUGE).all()):
            axes.set_yscale("log")
    for axes in figure.axes:
        if diagnosis.training_depth is not None:
            axes.axvline(diagnosis.training_depth, **_DEPTH)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.15)
    figure.axes[-1].set_xlabel("evaluations")
    _add_legend(figure, diagnosis)
    return figure


def _draw_residual(axes: Axes, residual: Tensor, verdicts: list[Verdict]) -> None:
    """Draw a thin line for each sample and a thick one for the median of each verdict; what is not finite is a gap."""
    # Zero has no logarithm: it lies where the smallest of the others does.
    positive = residual[residual > 1 / _HUGE]
    residual = residual.clamp(min=float(positive.min()) if positive.numel() else 1e-16)
    residual = _finite(residual)
    # The rarest on top, so that a few among many are seen.
    for verdict in sorted(set(verdicts), key=verdicts.count, reverse=True):
        rows = [row for row, other in enumerate(verdicts) if other == verdict]
        alpha = max(0.15, min(0.8, 4 / len(rows)))
        for row in rows:
            _draw_line(axes, residual[:, row], color=_COLORS[verdict], linewidth=0.7, alpha=alpha)
        _draw_middle(axes, residual[:, rows].nanmedian(dim=1).values, verdict)


def _draw_metric(axes: Axes, metric: Tensor, verdict: Tensor) -> None:
    """Draw the mean over the samples of each verdict and over all; single samples may be just right or wrong."""
    # The start took no evaluations, for which there is no place on the axis.
    metric = metric[1:]
    if metric.shape[1] > 1:
        for value in verdict.unique():
            _draw_middle(axes, _finite(metric[:, verdict == value].mean(dim=1)), Verdict(int(value)))
    _draw_line(axes, _finite(metric.mean(dim=1)), color=rcParams["text.color"], linewidth=1.2)


def _draw_line(axes: Axes, values: Tensor, *, color: str, linewidth: float, alpha: float = 1, style: Any = "-") -> None:
    depths = range(1, len(values) + 1)
    axes.plot(depths, values.tolist(), color=color, linewidth=linewidth, alpha=alpha, linestyle=style)


def _draw_middle(axes: Axes, values: Tensor, verdict: Verdict) -> None:
    """Draw what stands for all samples of a verdict, with a mark where its values end."""
    _draw_line(axes, values, color=_COLORS[verdict], linewidth=2, style=_STYLES[verdict])
    last = values.isfinite().nonzero()
    if len(last):
        at = int(last[-1])
        axes.plot([at + 1], [float(values[at])], marker=_MARKS[verdict], color=_COLORS[verdict], markersize=6)


def _finite(values: Tensor) -> Tensor:
    return values.where(values.abs() < _HUGE, torch.nan)


def _add_legend(figure: Figure, diagnosis: Diagnosis) -> None:
    handles = []
    for verdict, color in _COLORS.items():
        count = diagnosis.verdicts.count(verdict)
        if count:
            label = f"{count} {PHRASES[verdict][count > 1]}"
            style: dict[str, Any] = {"linestyle": _STYLES[verdict], "marker": _MARKS[verdict], "linewidth": 2}
            handles.append(Line2D([], [], color=color, label=label, **style))
    if diagnosis.metric is not None:
        label = f"mean {diagnosis.metric_name}"
        handles.append(Line2D([], [], color=rcParams["text.color"], linewidth=1.2, label=label))
    if diagnosis.training_depth is not None:
        handles.append(Line2D([], [], label="training depth", **_DEPTH))
    figure.legend(handles=handles, loc="outside upper left", ncols=min(3, len(handles)), frameon=False, fontsize=9)
