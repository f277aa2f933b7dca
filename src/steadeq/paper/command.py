"""`steadeq reproduce`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from .result import HARDWARE, tally
from .tables import CLAIM_TITLES, claim_rows


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `reproduce`."""

    name: str | None = positional(default=None)
    """A table or figure of the paper, or all; without one, those that are there are listed."""
    scale: Scale = "cpu"
    """Size of the models: cpu trains small ones here; paper prints how to train the paper's, and draws their runs."""
    runs: Path = Path("runs/reproduce")
    """Folder of the runs; finished ones are reused, interrupted ones go on."""
    out: Path = Path("results")
    """Folder of figures and numbers, with a folder for each table or figure."""
    jobs: int = 2
    """Number of runs that are trained at a time."""
    dry_run: bool = False
    """Only say what would be run."""


def run(arguments: Sequence[str]) -> int:
    """Reproduce a table or figure of the paper."""
    given = parse(Arguments, arguments, command="reproduce", summary="Reproduce a table or figure of the paper.")
    if given.name is None:
        rows = [
            [result.name, result.data(given.scale), result.duration(given.scale), result.statement]
            for result in RESULTS.values()
            if given.scale in result.scales
        ]
        print_table(["name", "data", "time", "what it shows"], rows)
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
        print_table(["run", "recipe", "state"], [[name, configs[name].recipe, states[name]] for name in configs])
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
        verdicts = result.produce(given.runs, given.out / result.name, given.scale)
        print_table(CLAIM_TITLES, claim_rows(verdicts))
        print(tally(verdicts))
        print(f"Written to {given.out / result.name}.")
    return 0


def commands(configs: Mapping[str, TrainConfig], folder: Path) -> list[list[str]]:
    """Return the arguments of `steadeq train` for each run, whose own folder goes into the given one."""
    return [
        [config.recipe, *command_line(config, recipes.get(config.recipe).build()), "--out", str(folder / name)]
        for name, config in configs.items()
    ]
