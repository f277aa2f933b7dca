"""Reports: figures of runs, and one HTML file that holds them all."""

from .analysis import analysis_panels
from .curves import curve_sections
from .group import RunGroup, group_runs
from .html import render_report, write_report
from .section import Panel, Section
from .style import save_png
from .summary import RunSummary
from .svg import inline_svg
from .synthetic import gamma_figure, synthetic_figure

__all__ = [
    "Panel",
    "RunGroup",
    "RunSummary",
    "Section",
    "analysis_panels",
    "curve_sections",
    "gamma_figure",
    "group_runs",
    "inline_svg",
    "render_report",
    "save_png",
    "synthetic_figure",
    "write_report",
]
