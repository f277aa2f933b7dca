"""Bars that compare a few models by several measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from .style import INK, WIDTH, fit, line_style, styled


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One measure of all models."""

    title: str
    """What is measured."""
    values: Sequence[float]
    """A number for each model."""
    texts: Sequence[str]
    """What is written at the end of each bar."""
    errors: Sequence[float] | None = None
    """The spread of each value, drawn as a line."""


def bars_figure(labels: Sequence[str], panels: Sequence[Bars], *, places: Sequence[int] | None = None) -> Figure:
    """Show a panel for each measure, from left to right, with a bar for each model.

    Args:
        labels: Names of the models.
        panels: What is shown of them.
        places: Places of their colors; their order without them.
    """
    rows = range(len(labels))
    with styled():
        figure = Figure(figsize=(WIDTH * len(panels) * 0.62 + 1.9, 0.9 + 0.42 * len(labels)))
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            axes.set_title(panel.title, loc="left")
            bars = axes.barh(
                rows, panel.values, height=0.62, color=[line_style(place)["color"] for place in places or rows]
            )
            if panel.errors is not None:
                axes.errorbar(panel.values, rows, xerr=panel.errors, fmt="none", ecolor=INK, elinewidth=1.2)
            axes.bar_label(bars, panel.texts, padding=7, fontsize=9.5)
            # Room for the texts; every bar has its number, so that the axis needs none.
            axes.set_xlim(0, 1.45 * max(panel.values))
            axes.set(xticks=[], yticks=list(rows))
            axes.spines[["bottom"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
            axes.grid(visible=False)
        all_axes[0].set_yticks(list(rows), [fit(label, 36) for label in labels])
        all_axes[0].invert_yaxis()
    return figure
