"""Figures as SVG that is part of an HTML page."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib.figure import Figure

from .style import INK, styled

_TAG = re.compile(r"<[^>]+>")
_LONG_DECIMAL = re.compile(r"(-?\d+\.\d\d)\d+")
_REFERENCE = re.compile(r"(?:href=\"|url\()#([^\")]+)")


def inline_svg(figure: Figure, *, prefix: str, label: str) -> str:
    """Return a figure as an `<svg>` element that follows the page: its width, its font and its text color.

    The same figure always gives the same text.

    Args:
        figure: What to draw.
        prefix: Put before every id; different for each figure of a page.
        label: What the figure shows, for those who cannot see it.
    """
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"\s*<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    # matplotlib's style sheet would apply to the whole page.
    drawing = re.sub(r"<style[^>]*>.*?</style>", "", drawing, flags=re.DOTALL)
    drawing = _TAG.sub(lambda tag: _shorten(tag[0]), drawing)
    drawing = _rename(drawing, prefix)
    drawing = drawing.replace(INK, "currentColor").replace("\n", " ")
    drawing = re.sub(r"> +<", "><", drawing).replace("<defs></defs>", "")
    box = re.search(r'viewBox="([^"]+)"', drawing)
    assert box is not None
    root = (
        f'<svg viewBox="{box[1]}" width="100%" role="img" aria-label="{escape(label)}" '
        'style="stroke-linejoin: round; stroke-linecap: butt">'
    )
    return root + drawing[drawing.index(">") + 1 :].strip()


def _shorten(tag: str) -> str:
    """Round coordinates to what a screen can show, and leave fonts to the page."""
    tag = _LONG_DECIMAL.sub(r"\1", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    # Some versions write the shorthand.
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", tag)
    return re.sub(r"\s+", " ", tag.replace("xlink:href", "href"))


def _rename(drawing: str, prefix: str) -> str:
    """Make the ids that something refers to unique in the page, and drop the others."""
    used = set(_REFERENCE.findall(drawing))
    drawing = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", drawing)
    return _REFERENCE.sub(lambda m: m[0].replace(f"#{m[1]}", f"#{prefix}-{m[1]}"), drawing)
