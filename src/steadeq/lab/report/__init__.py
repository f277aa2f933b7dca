"""Reports: figures of runs, and one HTML file that holds them all."""

from .curves import curve_sections, loop_figure, validation_evals_figure
from .diagnosis import diagnosis_panels, iteration_panel
from .groups import RunGroup, group_runs
from .html import render_report, write_report
from .panels import Panel, Section, inline_svg
from .style import save_png

__all__ = [
    "Panel",
    "RunGroup",
    "Section",
    "curve_sections",
    "diagnosis_panels",
    "group_runs",
    "inline_svg",
    "iteration_panel",
    "loop_figure",
    "render_report",
    "save_png",
    "validation_evals_figure",
    "write_report",
]
