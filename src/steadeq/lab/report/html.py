"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from ... import __version__
from ...models import ToyDEQ
from ..errors import InputError
from ..files import write_atomically
from ..runs import RunRecord
from ..serialization import class_name, config_to_json
from . import notation
from .comparison import compare_groups
from .curves import curve_sections
from .diagnosis import diagnosis_panels
from .groups import MAX_POINTS, RunGroup, group_runs
from .headline import compared_split, headlines
from .panels import Section, inline_svg
from .provenance import difference_table, environment_table, rerun_command, unique_names
from .synthetic import load_toys, synthetic_sections

_TITLE = "Jacobian regularization report"


def write_report(
    runs: Sequence[RunRecord],
    path: Path,
    *,
    title: str = _TITLE,
    sections: Sequence[Section] = (),
) -> None:
    """Write the report of some runs.

    Args:
        runs: The runs, at least one.
        path: Path of the HTML file.
        title: Title of the page.
        sections: More figures, which come after those of the runs.

    Raises:
        InputError: There is no run, or the file cannot be written.
    """
    page = render_report(runs, title=title, sections=sections)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)
    except OSError as error:
        raise InputError(f"The report {path} cannot be written: {error.strerror}.") from error


def render_report(runs: Sequence[RunRecord], *, title: str = _TITLE, sections: Sequence[Section] = ()) -> str:
    """Return the report of some runs as HTML; equal runs give equal pages.

    Args:
        runs: The runs, at least one.
        title: Title of the page.
        sections: More figures, which come after those of the runs.

    Raises:
        InputError: There is no run.
    """
    if not runs:
        raise InputError("A report needs at least one run.")
    groups, names = group_runs(runs), unique_names(runs)
    split = compared_split(groups)
    toys, problems = load_toys(runs)
    figures = [*_figure_sections(groups, toys), *_diagnosis_sections(runs, names), *sections]
    fields, differences = difference_table(runs)
    environment, machines = environment_table(runs)
    return _template().render(
        title=title,
        version=__version__,
        subtitle=_subtitle(groups),
        headlines=headlines(groups, split),
        notices=[
            (name, notice)
            for name, run in zip(names, runs, strict=True)
            for notice in _notices(run, problems.get(run.path))
        ],
        comparison=compare_groups(groups, split),
        split=split,
        max_points=MAX_POINTS,
        sections=[_draw(section, f"s{number}") for number, section in enumerate(figures, 1)],
        runs=[_describe(run, name) for run, name in zip(runs, names, strict=True)],
        fields=fields,
        differences=list(zip(names, differences, strict=True)),
        environment=environment,
        machines=list(zip(names, machines, strict=True)),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("steadeq.lab.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.jinja")


def _figure_sections(groups: Sequence[RunGroup], toys: Mapping[Path, ToyDEQ]) -> list[Section]:
    """Return the figures of each data set; runs of different data are not drawn over each other."""
    by_data: list[list[RunGroup]] = []
    for group in groups:
        peers = next((members for members in by_data if members[0].has_same_data(group)), None)
        if peers is None:
            by_data.append([group])
        else:
            peers.append(group)
    found = []
    for members in by_data:
        name = members[0].first.config.data.name
        for section in [*synthetic_sections(members, toys), *curve_sections(members)]:
            found.append(section if len(by_data) == 1 else replace(section, title=f"{section.title}: {name}"))
    return found


def _diagnosis_sections(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Section]:
    found = []
    for run, name in zip(runs, names, strict=True):
        diagnosis = run.diagnosis
        panels = [] if diagnosis is None else diagnosis_panels(diagnosis)
        if diagnosis is not None and panels:
            intro = (
                f"Measured on {diagnosis.num_samples} samples at step {diagnosis.step}, "
                f"with up to {diagnosis.max_evals} evaluations."
            )
            found.append(Section(title=f"Diagnosis of {name}", intro=intro, panels=panels))
    return found


@dataclass(frozen=True, kw_only=True)
class _DrawnPanel:
    title: str
    caption: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class _DrawnSection:
    id: str
    title: str
    intro: str
    panels: list[_DrawnPanel]


def _draw(section: Section, identifier: str) -> _DrawnSection:
    panels = [
        _DrawnPanel(
            title=panel.title,
            caption=panel.caption,
            svg=inline_svg(
                panel.figure,
                prefix=f"{identifier}f{index}",
                label=f"{section.title}. {panel.title}. {panel.caption}",
            ),
        )
        for index, panel in enumerate(section.panels, 1)
    ]
    return _DrawnSection(id=identifier, title=section.title, intro=section.intro, panels=panels)


def _subtitle(groups: Sequence[RunGroup]) -> str:
    num_runs = sum(len(group.runs) for group in groups)
    tasks = ", ".join(dict.fromkeys(group.first.config.data.name for group in groups))
    return f"{notation.plural(num_runs, 'run')} of {notation.plural(len(groups), 'config')} on {tasks}"


def _notices(run: RunRecord, problem: str | None) -> list[str]:
    found = [*run.problems, *([] if problem is None else [problem])]
    if not run.is_finished:
        found.append(f"{run.status[0].upper()}{run.status[1:]}.")
    is_validated = bool(run.validations) and run.validations[-1].score is not None
    if not is_validated and run.evaluation is None:
        found.append("Not evaluated yet.")
    if run.evaluation is not None and run.evaluation.step < run.step:
        found.append(f"evaluation.json is of step {run.evaluation.step:,}, and the run has gone on since.")
    if run.num_skipped:
        found.append(f"{notation.plural(run.num_skipped, 'step')} skipped, as the loss or the gradient was not finite.")
    return found


@dataclass(frozen=True, kw_only=True)
class _Description:
    name: str
    recipe: str
    model: str
    data: str
    parameters: str
    seed: int
    status: str
    command: list[str]
    config: str


def _describe(run: RunRecord, name: str) -> _Description:
    config = run.config
    return _Description(
        name=name,
        recipe=config.recipe,
        model=class_name(type(config.model)),
        data=config.data.name,
        parameters=notation.count(run.num_parameters),
        seed=config.loop.seed,
        status=run.status,
        command=rerun_command(run),
        config=config_to_json(config).strip(),
    )
