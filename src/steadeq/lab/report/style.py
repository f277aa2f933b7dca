"""How figures look: one size for all of them, and colors that can be read on white and on black."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

INK = "#010203"
"""Color of text and axes. No other color is similar, so that an inline SVG can replace it by the page's own."""
PALETTE = ("#2a78d6", "#d1620f", "#0f9175", "#c2509b", "#8b7a12", "#7a6fe0", "#c94a4a", "#64808f")
"""Colors of runs: each has a contrast of at least 3 with white and with the page's dark background."""
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
"""Line styles of runs, so that color is never the only difference."""
BLUE, RED, GRAY = PALETTE[0], "#dd3f4e", "#7d8691"

WIDTH, HEIGHT = 4.6, 3.2
"""Size of a figure in inches: about as many points as a phone has pixels, so that its text stays legible there."""

_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    **{f"axes3d.{axis}axis.panecolor": (0, 0, 0, 0) for axis in "xyz"},
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "grid.alpha": 0.13,
    "grid.color": INK,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.1,
    "legend.columnspacing": 1.4,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "legend.handletextpad": 0.6,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    # Text stays text: it takes the page's font, and the file is a third of what outlines would make it.
    "svg.fonttype": "none",
    "text.color": INK,
    # Names of runs may hold dollar signs.
    "text.parse_math": False,
    "xtick.color": INK,
    "xtick.labelsize": 9.5,
    "xtick.major.size": 3,
    "ytick.color": INK,
    "ytick.labelsize": 9.5,
    "ytick.major.size": 3,
    "ytick.minor.size": 0,
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def styled() -> AbstractContextManager[None]:
    """Return the context in which figures are made and drawn; it ignores the user's matplotlibrc."""
    return matplotlib.style.context(["default", _SETTINGS])


def new_axes(xlabel: str, ylabel: str, *, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes."""
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    return figure, axes


def line_style(index: int) -> dict[str, Any]:
    """Return color and line style of the run group of that index."""
    # Once all colors were used, they come again with other dashes.
    round_, color = divmod(index, len(PALETTE))
    return {"color": PALETTE[color], "linestyle": DASHES[(color + round_) % len(DASHES)]}


def use_log_scale(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Make an axis logarithmic, with powers of ten as its labels.

    The labels are plain Unicode: what matplotlib sets as mathematics keeps the widths of its own font, and falls apart
    in the page's.
    """
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    # Less than two powers of ten would leave the axis with a single label, and so would a small part of one.
    is_narrow = high / low < 30
    if high / low < 4:
        axis.set_major_locator(MaxNLocator(5))
    else:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power_label(value, use_decimals=is_narrow)))
    axis.set_minor_formatter(NullFormatter())


def _power_label(value: float, *, use_decimals: bool = False) -> str:
    """Return a tick label for a logarithmic axis.

    Example:
        >>> _power_label(1e-3), _power_label(0.1), _power_label(1.0), _power_label(2e4)
        ('10⁻³', '10⁻¹', '1', '2·10⁴')
        >>> _power_label(2e-4, use_decimals=True), _power_label(0.05, use_decimals=True)
        ('2·10⁻⁴', '0.05')
    """
    mantissa, exponent = f"{value:.0e}".split("e")
    if int(exponent) == 0 or (use_decimals and -4 < int(exponent) < 4):
        return f"{value:.3g}"
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if mantissa == "1" else f"{mantissa}·{power}"


def fit(label: str, max_length: int = 46) -> str:
    """Return a label on one line, with its middle left out if it is wider than a figure.

    Example:
        >>> fit("a label that is too long", 15)
        'a label…oo long'
    """
    label = " ".join(label.split())
    if len(label) <= max_length:
        return label
    half = (max_length - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def add_legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Put a legend of artists by their labels above the axes, where it covers nothing; long labels get a line each."""
    labels = [fit(label, 52) for label in handles]
    # In points, a letter takes about 5.6 and the sample of the line with its gaps 42.
    column = 5.6 * max(len(label) for label in labels) + 42
    columns = max(1, min(int(72 * figure.get_figwidth() / column), len(labels)))
    # The axes keep their height, however many lines the legend has.
    figure.set_figheight(figure.get_figheight() + 0.19 * (math.ceil(len(labels) / columns) - 1))
    figure.legend(list(handles.values()), labels, loc="outside upper left", ncols=columns)


def save_png(figure: Figure, path: Path, *, dpi: int = 200) -> None:
    """Save a figure as a PNG on white.

    Args:
        figure: The figure.
        path: The file.
        dpi: Pixels per inch.
    """
    with styled():
        figure.savefig(path, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
