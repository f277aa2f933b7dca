"""`steadeq reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..errors import InputError
from ..experiments import ARTEFACTS
from ..experiments.artefact import find_artefact
from ..experiments.pool import complete_runs
from ..train.display import choose_display
from .arguments import parse
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `reproduce` takes."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A table or figure of the paper; without one, all that are there are listed."""
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
        rows = [[a.name, a.data, f"{a.minutes:g}", a.claim] for a in ARTEFACTS.values()]
        print_table(["name", "data", "minutes", "claim"], rows)
        return 0
    artefact = find_artefact(given.name, ARTEFACTS)
    if given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}; it must be at least 1.")
    configs = artefact.runs()
    if given.dry_run:
        print_table(["run", "recipe", "where"], [[n, c.recipe, str(given.runs / n)] for n, c in configs.items()])
        return 0
    folders = {given.runs / name: config for name, config in configs.items()}
    finished = complete_runs(folders, num_jobs=given.jobs, display=choose_display())
    folder = given.out / artefact.name
    verdicts = artefact.produce(dict(zip(configs, finished, strict=True)), folder)
    print_table(["claim", "verdict", "numbers"], [[v.claim, v.outcome, v.evidence] for v in verdicts])
    print(f"Written to {folder}.")
    return 0
