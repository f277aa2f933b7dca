"""`steadeq reproduce`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..lab.cli.. import recipes
from ..lab.errors import InputError
from ..lab.cli import ARTEFACTS
from .result import Artefact, find_artefact
from ..lab.runner.completion import run_state
from ..lab.runner.pool import complete_runs
from ..lab.recipes.registry import Scale
from ..lab.train import Run, TrainConfig
from ..lab.train.display import choose_display
from ..lab.train.serialization import differences
from ..lab.cli.arguments import parse
from ..lab.cli.table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `reproduce` takes."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A table or figure of the paper, or all; without one, those that are there are listed."""
    scale: Scale = "cpu"
    """cpu trains small models here; paper says how to train the paper's, and draws from their runs."""
    runs: Path = Path("runs/reproduce")
    """Where runs go; finished ones are reused, interrupted ones go on."""
    out: Path = Path("results")
    """Where figures and numbers go, in a folder of the artefact's name."""
    jobs: int = 2
    """Runs at a time."""
    dry_run: bool = False
    """Only say what would be run."""


def run(arguments: Sequence[str]) -> int:
    """Reproduce a table or figure of the paper."""
    given = parse(Arguments, arguments, command="reproduce", summary="Reproduce a table or figure of the paper.")
    if given.name is None:
        rows = [
            [a.name, a.data.get(given.scale, "-"), a.duration.get(given.scale, "-"), a.claim]
            for a in ARTEFACTS.values()
        ]
        print_table(["name", "data", "time", "claim"], rows)
        return 0
    if given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}; it must be at least 1.")
    chosen = list(ARTEFACTS.values()) if given.name == "all" else [find_artefact(given.name, ARTEFACTS)]
    if given.name == "all":
        chosen = [artefact for artefact in chosen if given.scale in artefact.data]
    for artefact in chosen:
        if given.scale not in artefact.data:
            raise InputError(f"{artefact.name} is the same at every scale; leave out --scale.")
    configs = {name: config for artefact in chosen for name, config in artefact.runs(given.scale).items()}
    if given.dry_run:
        rows = [[name, config.recipe, run_state(given.runs / name, config)] for name, config in configs.items()]
        print_table(["run", "recipe", "state"], rows)
        return 0
    if given.scale == "paper":
        missing = {n: c for n, c in configs.items() if run_state(given.runs / n, c) not in ("finished", "diverged")}
        if missing:
            _print_commands(missing, given.runs)
            return 0
    folders = {given.runs / name: config for name, config in configs.items()}
    finished = dict(zip(configs, complete_runs(folders, num_jobs=given.jobs, display=choose_display()), strict=True))
    for artefact in chosen:
        _produce(artefact, finished, given)
    return 0


def _produce(artefact: Artefact, finished: Mapping[str, Run], given: Arguments) -> None:
    folder = given.out / artefact.name
    runs = {name: finished[name] for name in artefact.runs(given.scale)}
    verdicts = artefact.produce(runs, folder, given.scale)
    print_table(["claim", "verdict", "numbers"], [[v.claim, v.outcome, v.evidence] for v in verdicts])
    print(f"Written to {folder}.")


def _print_commands(configs: Mapping[str, TrainConfig], folder: Path) -> None:
    print(
        "Train these on your GPUs, in any order; --resume continues one that was stopped. Then run this command again."
    )
    for name, config in configs.items():
        line = ["torchrun", "--nproc-per-node", "4", "-m", "steadeq", "train", config.recipe]
        for option, _, value in differences(recipes.get(config.recipe).build(), config):
            line += [f"--{option.replace('_', '-')}", str(value)]
        print(shlex.join([*line, "--out", str(folder / name)]))
