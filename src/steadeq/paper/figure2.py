"""Figure 2 of the paper: where the layer normalizations of a DEQ-Transformer's cell are, in post-LN and in pre-LN."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from ..lab.report.style import BLUE, HEIGHT, INK, PALETTE, WIDTH, styled

_ATTENTION, _FFN, _NORM, _ADD = "attention(·, x)", "feed-forward", "layer norm", "+"
_CELLS = {
    "post-LN": ("z", _ATTENTION, _ADD, _NORM, _FFN, _ADD, _NORM, "f(z; x)"),
    "pre-LN": ("z", _NORM, _ATTENTION, _ADD, _NORM, _FFN, _ADD, "f(z; x)"),
}
"""What a state passes, from below; each sum adds what went into the last sub-layer, or into its normalization."""


def _skips(parts: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return from which part to which sum each skip connection leads.

    Example:
        >>> _skips(_CELLS["post-LN"]), _skips(_CELLS["pre-LN"])
        ([(0, 2), (3, 5)], [(0, 3), (3, 6)])
    """
    found, start = [], 0
    for place, part in enumerate(parts):
        if part == _ADD:
            found.append((start, place))
            start = place + 1 if parts[place + 1] == _NORM and _is_post(parts) else place
    return found


def _is_post(parts: tuple[str, ...]) -> bool:
    return parts[1] != _NORM


def _draw(axes: Axes, title: str, parts: tuple[str, ...]) -> None:
    axes.set(title=title, xlim=(-1.5, 1.9), ylim=(-0.6, len(parts) - 0.4))
    axes.axis("off")
    colors = {_NORM: PALETTE[1], _ATTENTION: BLUE, _FFN: BLUE}
    for place, part in enumerate(parts):
        if part in colors:
            box = FancyBboxPatch(
                (-0.9, place - 0.26), 1.8, 0.52, boxstyle="round,pad=0.02", fc="white", ec=colors[part]
            )
            axes.add_patch(box)
        axes.text(0, place, part, ha="center", va="center", fontsize=9.5)
        if place:
            line = {"arrowstyle": "->", "color": INK, "lw": 1.0}
            axes.annotate("", (0, place - 0.28), (0, place - 0.72), arrowprops=line)
    for start, end in _skips(parts):
        y = start + (0.45 if start else 0.42)
        axes.plot([0, 1.4, 1.4], [y, y, end], color=INK, lw=1.0)
        axes.annotate("", (0.15, end), (1.4, end), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.0})


def draw_cells() -> Figure:
    """Return the figure."""
    with styled():
        figure = Figure(figsize=(WIDTH, 1.15 * HEIGHT))
        for axes, (title, parts) in zip(figure.subplots(1, 2), _CELLS.items(), strict=True):
            _draw(axes, title, parts)
    return figure
