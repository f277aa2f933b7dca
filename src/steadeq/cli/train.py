"""`steadeq train`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch.distributed as dist
import tyro

from .. import recipes
from ..errors import InputError, RunError
from ..train import Process, Run, TrainConfig, Trainer
from ..train.display import choose_display
from ..train.profile import SECTIONS, Profile
from ..train.serialization import differences
from .arguments import parse
from .table import print_table

_HELP = """usage: steadeq train RECIPE [--out DIR] [--resume] [--profile] [--section.field VALUE ...]

Trains a recipe in the folder DIR (runs/RECIPE if none is named). Ctrl-C and kill save a checkpoint; --resume continues
from the latest. `steadeq train RECIPE --help` lists every field with its value in the recipe.

recipes: {names}"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `train` takes."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """The run's folder; runs/RECIPE if none is named."""
    resume: bool = False
    """Continue the run from its latest checkpoint."""
    profile: bool = False
    """Print at the end where the time went."""


def run(arguments: Sequence[str]) -> int:
    """Train."""
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is None and "--resume" not in arguments:
        if {"-h", "--help"} & set(arguments):
            print(_HELP.format(names=", ".join(recipes.names())))
            return 0
        raise InputError(f"Which recipe? There are {', '.join(recipes.names())}.")
    given, existing = _parse(name, arguments[1:] if name else arguments)
    with Process.join(given.config.loop.device) as process:
        try:
            _train(given, existing, process)
        except RuntimeError as error:
            if process.world_size > 1 and not isinstance(error, RunError) and _is_lost_peer(error):
                raise RunError(f"Process {process.rank} lost the others: {str(error).splitlines()[0]}") from error
            raise
    return 0


def _parse(name: str | None, options: Sequence[str]) -> tuple[Arguments, Run | None]:
    """Return the arguments, and the run to resume if there is one."""
    # A first look, for the folder: the rest depends on what is there.
    out = _peek(options, "--out")
    if out == "":
        raise InputError("--out is empty; it must name a folder.")
    folder = Path(out) if out is not None else Path("runs") / name if name else None
    if "--resume" in options and folder is None:
        raise InputError("Which run? Name its folder with --out.")
    existing = Run(folder) if folder is not None and "--resume" in options else None
    if existing is not None and not existing.exists():
        if name is None:
            raise InputError(f"{existing.path} is not a run that could be resumed.")
        existing = None
    config = existing.config() if existing is not None else recipes.get(name or "").build()
    if name is not None and config.recipe != recipes.get(name).name:
        raise InputError(f"{folder} is a run of the recipe {config.recipe!r}, not of {name!r}.")
    title = f"train {name}" if name else "train"
    given = parse(
        Arguments, options, command=title, default=Arguments(config=config), summary=f"Train {config.recipe!r}."
    )
    for field, old, new in differences(config, given.config) if existing is not None else []:
        raise InputError(f"The run in {folder} has {field} = {old}; it cannot be resumed with {new}.")
    return dataclasses.replace(given, out=folder), existing


def _peek(options: Sequence[str], name: str) -> str | None:
    for index, option in enumerate(options):
        if option == name:
            return options[index + 1] if index + 1 < len(options) else None
        if option.startswith(f"{name}="):
            return option.split("=", 1)[1]
    return None


def _train(given: Arguments, existing: Run | None, process: Process) -> None:
    assert given.out is not None
    display = choose_display()
    if not process.is_main:
        logging.getLogger("steadeq").setLevel(logging.ERROR)
    # Built before the folder is made: all that can be wrong with the input shows here.
    run = existing or Run(given.out)
    trainer = Trainer(given.config, run, process=process, display=display, is_profiled=given.profile)
    if existing is None and process.is_main:
        Run.create(given.out, given.config)
    process.wait()
    with run.lock() if process.is_main else nullcontext():
        if given.resume:
            is_resumed = existing is not None and trainer.resume()
            text = f"Resuming at step {trainer.step} of {trainer.num_steps}." if is_resumed else "Starting anew."
            trainer.display.say(text)
        values = trainer.evaluation if trainer.is_finished else trainer.train()
    metric = trainer.task.metric
    effort = f" with {values['forward_evals']:.1f} evaluations" if "forward_evals" in values else ""
    trainer.display.say(f"{run.path}: validation {metric} {values[metric]:.4g}{effort}.")
    if isinstance(trainer.profile, Profile) and process.is_main:
        shares = trainer.profile.shares()
        print_table(["where the time went", "share"], [[SECTIONS[n], f"{s:.1%}"] for n, s in shares.items()])


def _is_lost_peer(error: RuntimeError) -> bool:
    """Tell whether a collective failed because another process has gone."""
    return isinstance(error, dist.DistError) or any(
        word in str(error) for word in ("Connection closed by peer", "Connection reset", "gloo", "NCCL", "socket")
    )
