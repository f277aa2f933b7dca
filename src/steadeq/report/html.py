"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from .. import __version__
from ..errors import InputError
from ..train.files import write_atomically
from ..train.serialization import to_dict
from . import notation
from .analysis import analysis_panels
from .comparison import compare_groups
from .curves import curve_sections
from .group import RunGroup, group_runs
from .headline import compared_split, headlines
from .provenance import difference_table, environment_table, rerun_command, unique_names
from .section import Section
from .series import MAX_POINTS
from .study import study_sections
from .summary import RunSummary
from .svg import inline_svg


def write_report(
    runs: Sequence[RunSummary],
    path: Path,
    *,
    title: str = "Jacobian regularization report",
    sections: Sequence[Section] = (),
) -> None:
    """Write the report of some runs.

    Args:
        runs: At least one.
        path: Of the HTML file.
        title: Of the page.
        sections: More figures, after those of the runs.

    Raises:
        InputError: There is no run, or the file cannot be written.
    """
    page = render_report(runs, title=title, sections=sections)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)
    except OSError as error:
        raise InputError(f"The report {path} cannot be written: {error.strerror}.") from error


def render_report(
    runs: Sequence[RunSummary], *, title: str = "Jacobian regularization report", sections: Sequence[Section] = ()
) -> str:
    """Return the report of some runs as HTML; equal runs give equal pages.

    Args:
        runs: At least one.
        title: Of the page.
        sections: More figures, after those of the runs.

    Raises:
        InputError: There is no run.
    """
    if not runs:
        raise InputError("A report needs at least one run.")
    groups, names = group_runs(runs), unique_names(runs)
    split = compared_split(groups)
    # First, as what cannot be read is noted on the way.
    figures = [*_figure_sections(groups), *_analysis_sections(runs, names), *sections]
    fields, differences = difference_table(runs)
    environment, machines = environment_table(runs)
    return _template().render(
        title=title,
        version=__version__,
        subtitle=_subtitle(groups),
        headlines=headlines(groups, split),
        notices=[(name, notice) for name, run in zip(names, runs, strict=True) for notice in _notices(run)],
        comparison=compare_groups(groups, split),
        split=split,
        max_points=MAX_POINTS,
        sections=_draw(figures),
        runs=[_describe(run, name) for run, name in zip(runs, names, strict=True)],
        fields=fields,
        differences=list(zip(names, differences, strict=True)),
        environment=environment,
        machines=list(zip(names, machines, strict=True)),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("steadeq.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.jinja")


def _figure_sections(groups: Sequence[RunGroup]) -> list[Section]:
    """Return the figures of each dataset; runs of different data are not drawn over each other."""
    by_data: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_data.setdefault(group.data, []).append(group)
    found = []
    for members in by_data.values():
        name = members[0].first.config.data.name
        for section in [*study_sections(members), *curve_sections(members)]:
            heading = section.title if len(by_data) == 1 else f"{section.title}: {name}"
            found.append(Section(title=heading, intro=section.intro, panels=section.panels))
    return found


def _analysis_sections(runs: Sequence[RunSummary], names: Sequence[str]) -> list[Section]:
    found = []
    for run, name in zip(runs, names, strict=True):
        panels = [] if run.analysis is None else analysis_panels(run.analysis)
        if run.analysis is not None and panels:
            known = {key: run.analysis.get(key) for key in ("num_samples", "step", "max_evals")}
            intro = "Of {num_samples} samples at step {step}, with up to {max_evals} evaluations.".format(**known)
            is_complete = all(isinstance(value, int) for value in known.values())
            found.append(Section(title=f"Analysis of {name}", intro=intro if is_complete else "", panels=panels))
    return found


def _draw(sections: Sequence[Section]) -> list[dict[str, Any]]:
    drawn = []
    for number, section in enumerate(sections, 1):
        panels = [
            {
                "title": panel.title,
                "caption": panel.caption,
                "svg": inline_svg(
                    panel.figure, prefix=f"s{number}f{index}", label=f"{section.title}. {panel.title}. {panel.caption}"
                ),
            }
            for index, panel in enumerate(section.panels, 1)
        ]
        drawn.append({"id": f"s{number}", "title": section.title, "intro": section.intro, "panels": panels})
    return drawn


def _subtitle(groups: Sequence[RunGroup]) -> str:
    num_runs = sum(len(group.runs) for group in groups)
    tasks = ", ".join(dict.fromkeys(group.first.config.data.name for group in groups))
    return f"{notation.plural(num_runs, 'run')} of {notation.plural(len(groups), 'config')} on {tasks}"


def _notices(run: RunSummary) -> list[str]:
    found = list(dict.fromkeys(run.problems))
    if not run.is_finished:
        found.append(f"{run.status[0].upper()}{run.status[1:]}.")
    if run.numbers("validation")["score"] is None and not run.evaluation_rows:
        found.append("Not evaluated yet.")
    evaluated_at = (run.evaluation or {}).get("step")
    if isinstance(evaluated_at, int) and evaluated_at < run.step:
        found.append(f"evaluation.json is of step {evaluated_at:,}, and the run has gone on since.")
    if run.num_skipped:
        found.append(f"{notation.plural(run.num_skipped, 'step')} skipped, as the loss or the gradient was not finite.")
    return found


def _describe(run: RunSummary, name: str) -> dict[str, Any]:
    config = run.config
    return {
        "name": name,
        "recipe": config.recipe,
        "model": type(config.model).__name__,
        "data": config.data.name,
        "parameters": notation.count(run.num_parameters),
        "seed": config.loop.seed,
        "status": run.status,
        "command": rerun_command(run),
        "config": json.dumps(to_dict(config), indent=2),
    }
