"""Figures with their captions, under headings, and as SVG that is part of an HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from ..errors import printable
from .style import INK, styled

_XLINK = "{http://www.w3.org/1999/xlink}"
_LONG_DECIMAL = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r'(?:url\(|href=")#([^")]+)')
_NO_ROTATION = re.compile(r"rotate\(-?0 [^)]*\)")


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """A figure in a report."""

    figure: Figure
    """The figure."""
    title: str
    """What is shown, in a few words."""
    caption: str
    """What to look for, in a sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """Figures that belong together."""

    title: str
    """Heading of the section."""
    intro: str = ""
    """A paragraph below the heading."""
    panels: Sequence[Panel] = ()
    """The figures."""


def panels(*candidates: tuple[Figure | None, str, str]) -> list[Panel]:
    """Return the panels of those (figure, title, caption) that have a figure."""
    return [Panel(figure=figure, title=title, caption=caption) for figure, title, caption in candidates if figure]


def inline_svg(figure: Figure, *, prefix: str, label: str) -> str:
    """Return a figure as an `<svg>` element that follows the page: its width, its font and its text color.

    The same figure always gives the same text.

    Args:
        figure: What to draw.
        prefix: Text from which ids are made; different for each figure of a page.
        label: Description of the figure for screen readers.
    """
    for text in figure.findobj(Text):
        # Names in it come from files; what is no character has no place in XML, or in a font.
        text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
    buffer = io.StringIO()
    with styled(), rc_context({"svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = ElementTree.fromstring(buffer.getvalue())
    _clean(drawing, used=set(_REFERENCE.findall(buffer.getvalue())))
    drawing.attrib = {
        "viewBox": drawing.attrib["viewBox"],
        "width": "100%",
        "role": "img",
        "aria-label": label,
        "style": "stroke-linejoin: round; stroke-linecap: butt",
    }
    return ElementTree.tostring(drawing, encoding="unicode").replace(INK, "currentColor")


def _clean(element: ElementTree.Element, used: Set[str]) -> None:
    """Leave out what belongs to the page or says nothing, such as ids that are not used, and shorten the rest."""
    # HTML knows the elements of SVG without their namespace.
    element.tag = element.tag.rpartition("}")[2]
    element.attrib = {name: value for name, value in _clean_attributes(element) if value}
    if element.get("id") not in used:
        element.attrib.pop("id", None)
    # Only texts have text: elsewhere it is the layout of the file.
    element.text = (element.text or "").strip() or None
    element.tail = None
    for child in list(element):
        _clean(child, used)
        # A style sheet would apply to the whole page.
        if child.tag in ("metadata", "style") or (child.tag == "defs" and not len(child)):
            element.remove(child)


def _clean_attributes(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    for name, value in element.attrib.items():
        # Numbers are as exact as a screen can show.
        value = _LONG_DECIMAL.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
        value = " ".join(value.split())
        if name == "style":
            value = "; ".join(_clean_style(value))
        if name == "transform":
            value = _NO_ROTATION.sub("", value).strip()
        yield name.removeprefix(_XLINK), value


def _clean_style(style: str) -> Iterator[str]:
    """Yield the declarations of a style, without fonts."""
    for declaration in filter(None, map(str.strip, style.split(";"))):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # some versions of matplotlib write the shorthand
            yield from (f"font-size: {word}" for word in value.split() if word.endswith("px"))
        elif name != "font-family":
            yield f"{name}: {value}"
