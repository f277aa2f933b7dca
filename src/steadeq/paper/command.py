"""`steadeq reproduce`."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._internal.validation import suggestion
from ..lab import recipes
from ..lab.cli.arguments import parse, positional
from ..lab.cli.table import print_table
from ..lab.config import TrainConfig
from ..lab.errors import InputError
from ..lab.recipes.registry import Scale
from ..lab.runner import complete_runs, run_state
from ..lab.serialization import command_line
from ..lab.train.display import choose_display
from . import RESULTS
from .result import HARDWARE, PaperResult, count, tally
from .tables import CLAIM_TITLES, claim_rows


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `reproduce`."""

    name: str | None = positional(default=None)
    """A table or figure of the paper, or all; without one, those that are there are listed."""
    scale: Scale = "cpu"
    """Size of the runs: cpu trains small models for minutes, day trains them for hours; paper prints how to train the
    paper's own on GPUs, and draws their runs."""
    runs: Path = Path("runs/reproduce")
    """Folder of the runs; finished ones are reused, interrupted ones go on."""
    out: Path = Path("results")
    """Folder of figures and numbers, with a folder for each table or figure; in it, one for each scale but cpu."""
    jobs: int = 2
    """Number of runs that are trained at a time."""
    dry_run: bool = False
    """Only say what would be run."""


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
                _verdict(result, _folder(given, result.name)),
            ]
            for result in found
        ]
        print_table(titles, rows)
        print("Runs that several of them need are trained once.")
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
            raise InputError(f"{given.name} is the same at every scale; leave out --scale.")
    configs = {name: config for result in chosen for name, config in result.runs(given.scale).items()}
    states = {name: run_state(given.runs / name, config) for name, config in configs.items()}
    if given.dry_run:
        minutes = {name: value for result in chosen for name, value in result.minutes(given.scale).items()}
        rows = [[n, configs[n].recipe, states[n], f"{minutes[n]:g} min" if n in minutes else "-"] for n in configs]
        print_table(["run", "recipe", "state", "on one core"], rows)
        left = sum(minutes.get(name, 0) for name in configs if states[name] not in ("finished", "diverged"))
        print(f"{len(configs)} runs, {left / 60:.1f} core-hours and {_disk(configs.values())} of disk to go at most.")
        return 0
    if HARDWARE[given.scale].name:
        missing = {name: configs[name] for name in configs if states[name] not in ("finished", "diverged")}
        if missing:
            print(
                "Train these on your GPUs, in any order; --resume continues one that was stopped. Then run this "
                "command again."
            )
            for command in commands(missing, given.runs):
                print(shlex.join(["torchrun", "--nproc-per-node", "4", "-m", "steadeq", "train", *command]))
            return 0
    complete_runs({given.runs / n: c for n, c in configs.items()}, num_jobs=given.jobs, display=choose_display())
    for result in chosen:
        folder = _folder(given, result.name)
        verdicts = result.produce(given.runs, folder, given.scale)
        print_table(CLAIM_TITLES, claim_rows(verdicts))
        print(tally(verdicts))
        print(f"Written to {folder}.")
    return 0


def _folder(given: Arguments, name: str) -> Path:
    return given.out / name if given.scale == "cpu" else given.out / given.scale / name


def _verdict(result: PaperResult[Any], folder: Path) -> str:
    """Return how many claims of the paper the numbers of a folder confirm."""
    if not (folder / "summary.json").is_file():
        return "not run yet"
    _, verdicts = result.read(folder)
    return count(verdicts, "paper")


def _disk(configs: Iterable[TrainConfig]) -> str:
    """Return what the checkpoints of some runs take: weights and the two moments of Adam, in float32."""
    size = 0
    for config in configs:
        with torch.device("meta"):
            num_parameters = sum(parameter.numel() for parameter in config.model.build().parameters())
        size += 3 * 4 * num_parameters * config.log.keep_checkpoints
    return "-" if not size else f"{max(size / 1e9, 0.1):.1f} GB" if size > 1e8 else f"{max(size / 1e6, 1):.0f} MB"


def commands(configs: Mapping[str, TrainConfig], folder: Path) -> list[list[str]]:
    """Return the arguments of `steadeq train` for each run, whose own folder goes into the given one."""
    return [
        [config.recipe, *command_line(config, recipes.get(config.recipe).build()), "--out", str(folder / name)]
        for name, config in configs.items()
    ]
