"""Figures with their captions, under headings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """A figure in a report."""

    figure: Figure
    title: str
    """What is shown, in a few words."""
    caption: str
    """What to look for, in a sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """Figures that belong together."""

    title: str
    intro: str = ""
    panels: Sequence[Panel] = field(default_factory=tuple)


def panels(*candidates: tuple[Figure | None, str, str]) -> list[Panel]:
    """Return the panels of those (figure, title, caption) that have a figure."""
    return [Panel(figure=figure, title=title, caption=caption) for figure, title, caption in candidates if figure]
