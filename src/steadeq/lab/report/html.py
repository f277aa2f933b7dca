"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jinja2
from matplotlib.figure import Figure

from ... import __version__
from ..errors import InputError
from ..extension import EXTENSIONS
from ..files import write_atomically
from ..notation import plural
from ..run.record import RunRecord
from ..serialization import class_name, config_to_json
from ..terminal import Work
from .comparison import compare_groups, summary_lines
from .curves import curve_sections
from .diagnosis import diagnosis_panels, iteration_panel
from .groups import MAX_POINTS, RunGroup, group_runs
from .headline import compared_split, headlines
from .panels import Section, inline_svg
from .provenance import difference_table, environment_table, rerun_command

_TITLE = "Jacobian regularization report"


def write_report(
    runs: Sequence[RunRecord],
    path: Path | str,
    *,
    title: str = _TITLE,
    lead: Section | None = None,
    sections: Sequence[Section] = (),
) -> None:
    """Write the report of some runs.

    Args:
        runs: The runs, at least one.
        path: The HTML file.
        title: Title of the page.
        lead: What the page opens with, before all that is made of the runs: a paragraph, and figures that show it.
        sections: More figures, which come after those of the runs.

    Raises:
        InputError: There is no run, or the file cannot be written.
    """
    page, path = render_report(runs, title=title, lead=lead, sections=sections), Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Names of folders may hold what is no Unicode.
        write_atomically(path, page.encode(errors="replace"))
    except OSError as error:
        raise InputError(f"The report {path} cannot be written: {error.strerror}.") from error


def render_report(
    runs: Sequence[RunRecord],
    *,
    title: str = _TITLE,
    lead: Section | None = None,
    sections: Sequence[Section] = (),
) -> str:
    """Return the report of some runs as HTML; equal runs give equal pages.

    Args:
        runs: The runs, at least one.
        title: Title of the page.
        lead: What the page opens with, before all that is made of the runs: a paragraph, and figures that show it.
        sections: More figures, which come after those of the runs.

    Raises:
        InputError: There is no run.
    """
    if not runs:
        raise InputError("A report needs at least one run.")
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    with Work("Drawing the report") as work:
        return _render(runs, names, title=title, lead=lead, more=sections, work=work)


def _render(
    runs: Sequence[RunRecord],
    names: Sequence[str],
    *,
    title: str,
    lead: Section | None,
    more: Sequence[Section],
    work: Work,
) -> str:
    groups = group_runs(runs)
    split = compared_split(groups)
    figures, problems = _figure_sections(groups)
    sections = [*figures, *_diagnosis_sections(runs, names), *more]
    work.expect(sum(len(section.panels) for section in (*sections, *([] if lead is None else [lead]))))

    def draw(figure: Figure, *, prefix: str, label: str) -> str:
        drawn = inline_svg(figure, prefix=prefix, label=label)
        work.advance()
        return drawn

    data_names = ", ".join(dict.fromkeys(group.first.config.data.name for group in groups))
    return _template().render(
        title=title,
        version=__version__,
        subtitle=f"{plural(len(runs), 'run')} of {plural(len(groups), 'config')} on {data_names}",
        lead=lead,
        headlines=[] if lead is not None else headlines(groups, split),
        notices=[_notices(run, problems.get(run.path)) for run in runs],
        groups=groups,
        comparison=compare_groups(groups, split),
        split=split,
        max_points=MAX_POINTS,
        sections=sections,
        inline_svg=draw,
        summaries=summary_lines(groups, split),
        names=names,
        runs=runs,
        differences=difference_table(runs),
        environment=environment_table(runs),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("steadeq.lab.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "class_name": class_name,
        "config_to_json": config_to_json,
        "rerun_command": rerun_command,
        "zip": zip,
    }
    return environment.get_template("report.html.jinja")


def _figure_sections(groups: Sequence[RunGroup]) -> tuple[list[Section], dict[Path, str]]:
    """Return the figures of each data set, and sentences on runs that they leave out.

    Runs of different data are not drawn over each other.
    """
    firsts = [g for i, g in enumerate(groups) if not any(g.has_same_data(other) for other in groups[:i])]
    found: list[Section] = []
    problems: dict[Path, str] = {}
    for first in firsts:
        peers = [group for group in groups if group.has_same_data(first)]
        suffix = f": {first.first.config.data.name}" if len(firsts) > 1 else ""
        sections = curve_sections(peers)
        for extension in reversed(EXTENSIONS):
            more, left_out = importlib.import_module(extension.figures).report_sections(peers)
            sections, problems = [*more, *sections], problems | left_out
        found += [replace(section, title=section.title + suffix) for section in sections]
    return found, problems


def _diagnosis_sections(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Section]:
    found = []
    for name, diagnosis in zip(names, (run.diagnosis for run in runs), strict=True):
        if diagnosis is None:
            continue
        iteration = diagnosis.found
        found.append(
            Section(
                title=f"Does iterating {name} settle, and does it help?",
                intro=" ".join(f"{about.capitalize()}: {text}." for about, text in iteration.summary.items()),
                panels=[iteration_panel(diagnosis)],
            )
        )
        if panels := diagnosis_panels(diagnosis):
            intro = (
                f"Measured on {diagnosis.num_samples} samples at step {diagnosis.step}, "
                f"with up to {diagnosis.max_evals} evaluations of the run's solver."
            )
            found.append(Section(title=f"Equilibria of {name}", intro=intro, panels=panels))
    return found


def _notices(run: RunRecord, problem: str | None) -> list[str]:
    found = [*run.problems, *([] if problem is None else [problem])]
    if not run.is_finished:
        found.append(f"{run.status[0].upper()}{run.status[1:]}.")
    is_validated = bool(run.validations) and run.validations[-1].score is not None
    if not is_validated and run.evaluation is None:
        found.append("Not evaluated yet.")
    if run.evaluation is not None and run.evaluation.step < run.step:
        found.append(f"evaluation.json is of step {run.evaluation.step:,}, and the run has gone on since.")
    lines = [line for line in run.training if line.penalty_held_back is not None]
    last = [line.penalty_held_back or 0.0 for line in lines[-max(len(lines) // 10, 1) :]]
    if last and sum(last) > 0.5 * len(last):
        found.append(
            "The closed loop did not reach its target: maximum or max_share of its schedule held the penalty back on "
            f"{100 * sum(last) / len(last):.0f}% of the steps in the last tenth of training."
        )
    if run.is_mostly_skipped:
        found.append("More than half of the steps were skipped: this is no trained network.")
    if run.num_skipped:
        found.append(f"{plural(run.num_skipped, 'step')} skipped, as the loss or the gradient was not finite.")
    return found
