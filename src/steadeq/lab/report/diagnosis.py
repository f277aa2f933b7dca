"""Figures of what `steadeq diagnose` measured on one run; each is None where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..run.record import Array, RunDiagnosis
from .panels import Panel, panels
from .style import BLUE, GRAY, PALETTE, add_legend, new_axes, styled, use_log_scale

_HUGE = 1e300
"""What is beyond is left out of figures, whose arithmetic it would overflow."""


def residual_curve_figure(diagnosis: RunDiagnosis) -> Figure | None:
    """Show the relative residual against evaluations: its mean, and where 80% of the samples are."""
    mean, low, high = map(_numbers, (diagnosis.residual_mean, diagnosis.residual_low, diagnosis.residual_high))
    # The first entry may be the residual before any evaluation, which is not a number.
    kept = (mean > 0) & (mean < _HUGE)
    if not kept.any():
        return None
    evals, mean = np.arange(len(mean))[kept], mean[kept]
    floor = np.maximum(np.nan_to_num(low[kept]), mean * 1e-3)
    top = np.where(np.isfinite(high[kept]), high[kept], mean)
    with styled():
        figure, axes = new_axes("evaluations", "relative residual")
        (line,) = axes.plot(evals, mean, color=BLUE, marker="o" if len(mean) == 1 else None)
        area = axes.fill_between(evals, floor, top, color=BLUE, alpha=0.2, linewidth=0)
        handles: dict[str, Any] = {"mean": line, "10% to 90%": area}
        if diagnosis.tol > 0:
            handles["tolerance"] = axes.axhline(diagnosis.tol, color=GRAY, linewidth=1.2, linestyle=(0, (3, 2)))
        use_log_scale(axes)
        axes.set_xlim(left=0)
        add_legend(figure, handles)
    return figure


def num_evals_figure(diagnosis: RunDiagnosis) -> Figure | None:
    """Show how many samples took how many evaluations."""
    values = _numbers(diagnosis.num_evals)
    if not len(values):
        return None
    low, high = values.min(), values.max()
    # One bar for each count, unless there are more counts than a small figure can hold.
    width = max(1, math.ceil((high - low + 1) / 30))
    figure = _histogram(values, "evaluations", np.arange(low, high + width + 1, width) - 0.5)
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(7, integer=True))
    return figure


def spectral_radius_figure(diagnosis: RunDiagnosis) -> Figure | None:
    """Show the spectral radius of each sample in ascending order, with the paper's Rayleigh estimate beside it."""
    values = _numbers(diagnosis.spectral_radius)
    if not (np.abs(values) < _HUGE).any():
        return None
    order, rank = np.argsort(values), np.arange(1, len(values) + 1)
    values, rayleigh = values[order], _numbers(diagnosis.spectral_radius_rayleigh)[order]
    errors = np.maximum(_numbers(diagnosis.spectral_radius_errors)[order], 0)
    known = np.isfinite(errors)
    with styled():
        figure, axes = new_axes("sample, in order of ρ(J)", "spectral radius ρ(J)")
        axes.axhline(1.0, color=GRAY, linewidth=1.2, linestyle=(0, (3, 2)), zorder=1)
        handles: dict[str, Any] = {}
        mark: dict[str, Any] = {"color": BLUE, "markersize": 4.5}
        if known.any():
            bars = axes.errorbar(rank[known], values[known], yerr=errors[known], fmt="o", elinewidth=1, **mark)
            handles["Arnoldi, with its error"] = bars
        if not known.all():
            (hollow,) = axes.plot(rank[~known], values[~known], "o", fillstyle="none", **mark)
            handles["Arnoldi, error unknown"] = hollow
        (handles["Rayleigh"],) = axes.plot(rank, rayleigh, "D", color=PALETTE[1], markersize=4, fillstyle="none")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.9), max(high, 1.1))
        add_legend(figure, handles)
    return figure


def jacobian_norm_figure(diagnosis: RunDiagnosis) -> Figure | None:
    """Show how the squared Jacobian norm by state dimension is distributed over samples."""
    values = _numbers(diagnosis.jacobian_norm)
    values = values[np.abs(values) < _HUGE]
    if not len(values):
        return None
    low, high = values.min(), values.max()
    # Values that are all but equal get bars of a width that floats can tell.
    margin = max(0.0, 1e-6 * max(abs(low), abs(high), 1e-300) - (high - low))
    count = min(20, max(5, round(math.sqrt(len(values)) * 2)))
    return _histogram(values, "‖J‖² / d", np.linspace(low - margin, high + margin, count + 1))


def diagnosis_panels(diagnosis: RunDiagnosis) -> list[Panel]:
    """Return the figures of a diagnosis that have something to show.

    Args:
        diagnosis: What `steadeq diagnose` found.
    """
    return panels(
        (
            residual_curve_figure(diagnosis),
            "Residual by evaluations",
            "The steeper the curve falls, the fewer evaluations a given accuracy takes.",
        ),
        (
            num_evals_figure(diagnosis),
            "Evaluations by sample",
            "Samples in a bar at the right end have spent the whole budget.",
        ),
        (
            spectral_radius_figure(diagnosis),
            "Spectral radius by sample",
            "Above the line at 1, plain iteration moves away from the equilibrium; the Rayleigh quotient, which the "
            "paper reports, can be far from the true value when the Jacobian is not symmetric.",
        ),
        (
            jacobian_norm_figure(diagnosis),
            "Jacobian norm by sample",
            "Squared Frobenius norm divided by the state's dimension; "
            "a long tail to the right means that some samples are much harder than the rest.",
        ),
    )


def iteration_panel(diagnosis: RunDiagnosis) -> Panel:
    """Return the figure of plain iteration.

    Args:
        diagnosis: What `steadeq diagnose` found.
    """
    found = diagnosis.found
    with styled():
        figure = found.plot()
        for axes in figure.axes:
            if axes.get_yscale() == "log":
                use_log_scale(axes)
    shown = "Residual" if found.metric is None else f"Residual and {found.metric_name}"
    return Panel(
        figure=figure,
        title=f"{shown} of plain iteration",
        caption="Thin lines are samples, thick lines are medians of samples with the same verdict. Lines that stay "
        "flat never settle; look beyond the training depth.",
    )


def _histogram(values: Array, xlabel: str, bins: Any) -> Figure:
    with styled():
        figure, axes = new_axes(xlabel, "samples")
        axes.hist(values, bins=bins, color=BLUE, rwidth=0.88)
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def _numbers(values: Sequence[float | None]) -> Array:
    """Return an array, in which None becomes NaN."""
    return np.array(values, dtype=np.float64)
