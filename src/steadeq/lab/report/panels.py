"""Figures with their captions, under headings, and as SVG that is part of an HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from matplotlib.figure import Figure

from .style import INK, styled

_XLINK = "{http://www.w3.org/1999/xlink}"
_LONG_DECIMAL = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_NO_ROTATION = re.compile(r"rotate\(-?0 [^)]*\)")
_GEOMETRY = ("d", "height", "points", "style", "transform", "viewBox", "width", "x", "y")
"""Attributes that hold numbers of the drawing."""


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
        prefix: Text put before every id; different for each figure of a page.
        label: What the figure shows, for those who cannot see it.
    """
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = ElementTree.fromstring(buffer.getvalue())
    _clean(drawing)
    _rename_ids(drawing, prefix)
    drawing.attrib = {
        "viewBox": drawing.attrib["viewBox"],
        "width": "100%",
        "role": "img",
        "aria-label": label,
        "style": "stroke-linejoin: round; stroke-linecap: butt",
    }
    return ElementTree.tostring(drawing, encoding="unicode")


def _clean(element: ElementTree.Element) -> None:
    """Leave out what belongs to the page or says nothing, and shorten the rest."""
    # HTML knows the elements of SVG without their namespace.
    element.tag = element.tag.rpartition("}")[2]
    element.attrib = dict(_clean_attributes(element))
    # Only texts have text: elsewhere it is the layout of the file.
    element.text = (element.text or "").strip() or None
    element.tail = None
    for child in list(element):
        _clean(child)
        # A style sheet would apply to the whole page.
        if child.tag in ("metadata", "style") or (child.tag == "defs" and not len(child)):
            element.remove(child)


def _clean_attributes(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    for name, value in element.attrib.items():
        if name in _GEOMETRY:
            # As exact as a screen can show.
            value = _LONG_DECIMAL.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
            value = " ".join(value.split())
        if name == "style":
            value = "; ".join(f"{key}: {setting}" for key, setting in _clean_style(value))
        if name == "transform":
            value = _NO_ROTATION.sub("", value).strip()
        if value:
            yield name.removeprefix(_XLINK), "currentColor" if value == INK else value


def _clean_style(style: str) -> Iterator[tuple[str, str]]:
    """Yield the declarations of a style, without fonts and with the page's text color instead of ink."""
    for declaration in filter(None, map(str.strip, style.split(";"))):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # some versions of matplotlib write the shorthand
            size = next((word for word in value.split() if word.endswith("px")), None)
            if size is not None:
                yield "font-size", size
        elif name != "font-family":
            yield name, "currentColor" if value == INK else value


def _rename_ids(drawing: ElementTree.Element, prefix: str) -> None:
    """Make the ids that something refers to unique in the page, and drop the others."""
    used: set[str] = set()
    for element in drawing.iter():
        used.update(*(_REFERENCE.findall(value) for value in element.attrib.values()))
        if element.get("href", "").startswith("#"):
            used.add(element.attrib["href"][1:])
    for element in drawing.iter():
        attributes = {
            name: _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
            for name, value in element.attrib.items()
            if name != "id" or value in used
        }
        if "id" in attributes:
            attributes["id"] = f"{prefix}-{attributes['id']}"
        if attributes.get("href", "").startswith("#"):
            attributes["href"] = f"#{prefix}-{attributes['href'][1:]}"
        element.attrib = attributes
