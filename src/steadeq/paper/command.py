"""`steadeq reproduce`."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..checks import suggestion
from ..lab import recipes
from ..lab.cli.arguments import parse, positional
from ..lab.cli.table import print_table
from ..lab.config import TrainConfig
from ..lab.errors import InputError
from ..lab.notation import plural
from ..lab.recipes.registry import Scale
from ..lab.run.archive import archive_run
from ..lab.runner import complete_runs
from ..lab.serialization import command_line
from ..lab.terminal import Work, answer, note
from ..lab.train.display import choose_display
from ..models import AbstractModelConfig
from .catalog import RESULTS
from .pages import write_pages
from .planned import PlannedRun, plan_runs, together
from .result import HARDWARE, PaperResult, Verdict, count, results_folder, tally
from .tables import CLAIM_TITLES, claim_rows


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `reproduce`."""

    name: str | None = positional(default=None)
    """A table or figure of the paper, or all; without a name, the command lists them."""
    scale: Scale = "cpu"
    """Size of the runs: cpu trains small models for minutes, day trains them for hours; paper prints how to train the
    paper's own on GPUs, and draws their runs."""
    runs: Path = Path("runs/reproduce")
    """Folder for the runs; finished runs are reused, interrupted runs continue."""
    out: Path = Path("results")
    """Folder for figures and numbers, with one folder per table or figure; scales other than cpu get a folder of their
    own inside it."""
    jobs: int = 2
    """Number of runs to train at the same time."""
    archive: Path | None = None
    """Folder in which finished runs are archived as small files, without their weights. Runs found there are not
    trained again, and runs that finish are added. By default the folder `runs` inside --out, or `runs-quick` with
    --quick."""
    finished_only: bool = False
    """Train nothing; make the tables and figures from the finished runs, and list the runs that are missing."""
    dry_run: bool = False
    """Only list the runs, how far each of them is, and how many core-hours are left."""
    quick: bool = False
    """Make a small part of a result that takes hours, in minutes and in a folder of its own inside --out."""
    judge_only: bool = False
    """Only judge the claims again from the numbers in --out, without opening any run."""


def run(arguments: Sequence[str]) -> int:
    """Reproduce a table or figure of the paper."""
    given = parse(Arguments, arguments, command="reproduce", summary="Reproduce a table or figure of the paper.")
    if given.name is None:
        found = [result for result in RESULTS.values() if given.scale in result.scales]
        titles = ["name", "what it is", "data", "time", "disk", "claims of the paper that hold"]
        rows = [
            [
                result.name,
                result.title.partition(": ")[2] or result.title,
                result.data(given.scale),
                result.duration(given.scale),
                _disk(result.runs(given.scale).values()),
                _verdict(result, results_folder(given.out, result.name, given.scale)),
            ]
            for result in found
        ]
        print_table(titles, rows)
        note("Runs that several of them need are trained once.")
        answer([dict(zip(titles, row, strict=True)) for row in rows])
        return 0
    if given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}; it must be at least 1.")
    if given.name == "all":
        chosen = [result for result in RESULTS.values() if given.scale in result.scales]
    else:
        if given.name not in RESULTS:
            raise InputError(
                f"There is no table or figure {given.name!r}.{suggestion(given.name, RESULTS)} `steadeq reproduce` "
                "lists them all."
            )
        chosen = [RESULTS[given.name]]
        if given.scale not in chosen[0].scales:
            known = " or ".join(chosen[0].scales)
            raise InputError(
                f"{given.name} is the same at every scale; leave out --scale."
                if chosen[0].scales == ("cpu",)
                else f"There is no {given.name} at the scale {given.scale}; --scale can be {known}."
            )
    if given.quick:
        parts = [result.quick() for result in chosen]
        chosen = [part for part in parts if part is not None]
        if not chosen:
            raise InputError(f"{given.name} has no part that is quick; leave out --quick.")
    if given.judge_only:
        for result in chosen:
            folder = results_folder(given.out, result.name, given.scale)
            if (folder / "summary.json").is_file():
                print(f"{result.name}: {tally(result.judge_anew(folder))}")
            else:
                print(f"{result.name} has no numbers in {folder}.")
        _write_pages(given.out)
        return 0
    archive = given.archive
    if archive is None:
        # What is quick is for seeing it happen, and trained anew in a checkout that has these runs.
        archive = given.out / ("runs-quick" if given.quick else "runs")
    plans = {result.name: plan_runs(result, given.scale, runs=given.runs, archive=archive) for result in chosen}
    runs = together(plans.values())
    missing = {name: run for name, run in runs.items() if not run.is_done}
    if given.dry_run:
        _show_plan(runs)
        return 0
    if missing and not given.finished_only:
        if HARDWARE[given.scale].name:
            print(
                "Train these on your GPUs, in any order; --resume continues one that was stopped. Then run this "
                "command again."
            )
            for command in commands({name: run.config for name, run in missing.items()}, given.runs):
                print(shlex.join(["torchrun", "--nproc-per-node", "4", "-m", "steadeq", "train", *command]))
            return 0
        display = choose_display()
        display.say(
            f"Training {plural(len(missing), 'run')} in {given.runs}, {min(given.jobs, len(missing))} at a time."
        )
        complete_runs({run.path: run.config for run in missing.values()}, num_jobs=given.jobs, display=display)
    elif not missing and runs:
        num_archived = sum(run.is_archived for run in runs.values())
        note(f"All {plural(len(runs), 'run')} are finished, {num_archived} of them in {archive}; none is trained.")
    judged: dict[str, Any] = {}
    for result in chosen:
        plan = plans[result.name].items()
        paths = {name: run.path for name, run in plan if run.is_done or not given.finished_only}
        if verdicts := _produce(given, result, paths):
            judged[result.name] = [dict(zip(CLAIM_TITLES, row, strict=True)) for row in claim_rows(verdicts)]
        for name, run in plan:
            # Of what needs the weights, the small files are of no use.
            if name in paths and not run.is_archived and result.can_use(name, run.path, given.scale):
                archive_run(run.path, archive / name)
    if judged and not given.quick:
        _write_pages(given.out)
    answer(judged)
    return 0


def _write_pages(out: Path) -> None:
    """Write the pages of the results if the folder belongs to a checkout."""
    root = out.resolve().parent
    if out.name == "results" and write_pages(root):
        note(f"Written to the pages in {root / 'docs' / 'results'}.")


def _show_plan(runs: Mapping[str, PlannedRun]) -> None:
    """Print all runs, how far they are, and what is left to do."""
    rows = [
        [
            name,
            run.config.recipe,
            f"{run.state}, archived" if run.is_archived else run.state,
            "-" if run.minutes is None else f"{run.minutes:g} min",
        ]
        for name, run in runs.items()
    ]
    print_table(["run", "recipe", "state", "on one core"], rows)
    left = [run for run in runs.values() if not run.is_done]
    hours = sum(run.minutes_left for run in left) / 60
    disk = _disk(run.config for run in left)
    print(f"{len(runs)} runs, {hours:.1f} core-hours and {disk} of disk to go at most.")


def _produce(given: Arguments, result: PaperResult[Any], paths: Mapping[str, Path]) -> Sequence[Verdict]:
    """Make a result of the runs that are finished, and print and return what became of its claims."""
    wanted, folder = result.runs(given.scale), results_folder(given.out, result.name, given.scale)
    missing = [name for name in wanted if name not in paths]
    if missing:
        print(
            f"{result.name}: {len(paths)} of {len(wanted)} runs are finished, and these are not: {', '.join(missing)}."
        )
        if not paths or not result.can_be_partial:
            why = "it needs all of its runs" if paths else "none of its runs is finished"
            print(f"{result.name} is left out: {why}.")
            return ()
    with Work(f"Making {result.name}" + (f" from {plural(len(paths), 'run')}" if paths else "")):
        verdicts = result.produce(paths, folder, given.scale)
    print_table(CLAIM_TITLES, claim_rows(verdicts))
    print(tally(verdicts))
    note(f"Written to {folder}.")
    return verdicts


def _verdict(result: PaperResult[Any], folder: Path) -> str:
    """Return how many claims of the paper the numbers of a folder confirm."""
    if not (folder / "summary.json").is_file():
        return "not run yet"
    _, verdicts = result.read(folder)
    return count(verdicts, "paper")


def _disk(configs: Iterable[TrainConfig]) -> str:
    """Return what the checkpoints of some runs take: weights and the two moments of Adam, in float32."""
    size = sum(3 * 4 * _num_parameters(config.model) * config.log.keep_checkpoints for config in configs)
    return "-" if not size else f"{max(size / 1e9, 0.1):.1f} GB" if size > 1e8 else f"{max(size / 1e6, 1):.0f} MB"


@cache
def _num_parameters(config: AbstractModelConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build().parameters())


def commands(configs: Mapping[str, TrainConfig], folder: Path) -> list[list[str]]:
    """Return the arguments of `steadeq train` for each run, whose own folder goes into the given one."""
    return [
        [config.recipe, *command_line(config, recipes.get(config.recipe).build()), "--out", str(folder / name)]
        for name, config in configs.items()
    ]
