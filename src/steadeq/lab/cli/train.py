"""`steadeq train`."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from .. import recipes
from ..config import TrainConfig
from ..errors import InputError, Interrupted, RunError
from ..run.folder import RunFolder
from ..run.record import RunRecord
from ..serialization import differences
from ..terminal import Work, answer
from ..train import Process, Trainer
from ..train.display import choose_display
from ..train.distributed import Parallel
from ..train.loop import ADVICE
from ..train.profile import SECTIONS
from .arguments import parse_with_config
from .table import print_table

_HELP = """usage: steadeq train RECIPE [--out DIR] [--resume] [--parallel fsdp] [--profile] [--section.field VALUE ...]

Train a recipe in the folder DIR (runs/RECIPE by default). RECIPE is a name, or path/to/file.py:function for your own.
Ctrl-C and kill save a checkpoint; --resume continues from the latest, and with a larger --loop.num-epochs or
--loop.num-steps makes the run longer. `steadeq train RECIPE --help` lists every field with its value in the recipe.
`steadeq recipes` lists the recipes. While it trains, "evals 12.0+8.0" means that a sample took 12 evaluations of the
cell in this training step, and 8 vector-Jacobian products in its backward solve. --quiet shows nothing but errors, and
--json prints the last validation for scripts."""


_LENGTH = ("loop.num_epochs", "loop.num_steps")
"""What may be changed when a run is resumed."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `train`."""

    out: Path | None = None
    """Folder of the run; runs/RECIPE if none is named."""
    resume: bool = False
    """Continue the run from its latest checkpoint."""
    parallel: Parallel = "ddp"
    """How several processes share the work: "ddp" keeps the whole model in each, "fsdp" shards parameters, gradients
    and optimizer state. You can resume a run with the other choice."""
    profile: bool = False
    """Print at the end where the time went."""


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What is to be trained, and where."""

    recipe: str | None
    """What the user named; the recipe of a config that was read is never executed."""
    config: TrainConfig
    folder: RunFolder
    is_new: bool
    shorter: TrainConfig | None
    """The config of the run so far, if it is to be longer."""
    args: Arguments


def run(arguments: Sequence[str]) -> int:
    """Train."""
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is None and "--resume" not in arguments:
        if {"-h", "--help"} & set(arguments):
            print(_HELP)
            return 0
        raise InputError("Which recipe? `steadeq recipes` lists them.")
    request = _parse(name, arguments[1:] if name else arguments)
    with Process.join(request.config.loop.device, parallel=request.args.parallel) as process:
        try:
            _train(request, process)
        except RuntimeError as error:
            if process.world_size > 1 and not isinstance(error, RunError) and _is_lost_peer(error):
                raise RunError(f"Process {process.rank} lost the others: {str(error).splitlines()[0]}") from error
            raise
    return 0


def _parse(name: str | None, options: Sequence[str]) -> _Request:
    # A first look, for the folder: the rest depends on what is there.
    out = _peek(options, "--out")
    if out == "":
        raise InputError("--out is empty; it must name a folder.")
    recipe = None if name is None else recipes.load_recipe(name)
    if out is not None:
        path = Path(out)
    elif recipe is not None:
        # For bikes.py:small it is bikes-small.
        own_name = f"{recipe.source.stem}-{recipe.name.rpartition(':')[2]}"
        path = Path("runs") / (own_name if recipe.scale is None else recipe.name)
    else:
        raise InputError("Which run? Name its folder with --out.")
    folder = RunFolder(path)
    is_new = "--resume" not in options or not folder.exists()
    if is_new and recipe is None:
        raise InputError(f"{path} is not a run that can be resumed.")
    config = recipe.build() if is_new and recipe is not None else folder.config(recipe=name)
    if recipe is not None and not is_new and Path(config.recipe).name != Path(recipe.name).name:
        raise InputError(f"{path} is a run of the recipe {config.recipe!r}, not of {recipe.name!r}.")
    command, summary = f"train {name}" if name else "train", f"Train {config.recipe!r}."
    args, changed = parse_with_config(Arguments, options, config=config, command=command, summary=summary)
    changes = [] if is_new else differences(config, changed)
    for field, old, new in changes:
        if field not in _LENGTH:
            raise InputError(f"The run in {path} has {field} = {old}; it cannot be resumed with {new}.")
    shorter = config if changes else None
    return _Request(recipe=name, config=changed, folder=folder, is_new=is_new, shorter=shorter, args=args)


def _peek(options: Sequence[str], name: str) -> str | None:
    for index, option in enumerate(options):
        if option == name:
            return options[index + 1] if index + 1 < len(options) else None
        if option.startswith(f"{name}="):
            return option.split("=", 1)[1]
    return None


def _train(request: _Request, process: Process) -> None:
    if not process.is_main:
        logging.getLogger("steadeq").setLevel(logging.ERROR)
    folder = request.folder
    # Built before the folder is made: all that can be wrong with the input shows here.
    with Work(f"Reading {request.config.data.name} and building the model"):
        trainer = Trainer(
            request.config,
            folder,
            process=process,
            display=choose_display(),
            is_profiled=request.args.profile,
            recipe=request.recipe,
        )
    if request.is_new and process.is_main:
        RunFolder.create(folder.path, request.config)
    process.wait()
    # Who writes no part of a checkpoint may not even see the folder.
    is_writing = process.is_main or process.is_sharded
    with folder.lock(exclusive=process.is_main) if is_writing else nullcontext():
        if request.args.resume:
            is_resumed = not request.is_new and trainer.resume(shorter=request.shorter)
            text = f"Resuming at step {trainer.step} of {trainer.num_steps}." if is_resumed else "Starting anew."
            if is_resumed and request.shorter is not None:
                text += " From now on, the schedules of learning rate and penalty follow the longer run."
            trainer.display.say(text)
        is_through = trainer.is_finished and RunRecord.read(folder.path, recipe=request.recipe).is_finished
        try:
            values = trainer.evaluation if is_through else trainer.train()
        except Interrupted as error:
            raise Interrupted(f"{error} To go on: {_resuming(request, process)}") from None
    score = trainer.task.show(values[trainer.task.metric], digits=4)
    effort = f" with {values['forward_evals']:.1f} evaluations" if "forward_evals" in values else ""
    depth = request.config.training_depth(trainer.step)
    if effort and depth != request.config.evaluation_solver.max_evals:
        effort += f" (trained with up to {depth}; `steadeq evaluate {folder.path}` tries other numbers)"
    trainer.display.say(f"{folder.path}: validation {trainer.task.metric} {score}{effort}.")
    answer({"run": folder.path, "step": trainer.step, "validation": values})
    if trainer.num_bad:
        skipped = (
            f"{trainer.num_bad} of {trainer.step} steps were skipped, because their loss or gradient was not finite"
        )
        if 2 * trainer.num_bad > trainer.step:
            raise RunError(f"{folder.path}: {skipped}; the network is not trained. {ADVICE}")
        trainer.display.say(f"{skipped}.")
    if request.args.profile and process.is_main:
        shares = trainer.profile.shares()
        print_table(["where the time went", "share"], [[SECTIONS[n], f"{s:.1%}"] for n, s in shares.items()])


def _resuming(request: _Request, process: Process) -> str:
    """Return the command that goes on with a run."""
    # Only classes of a user's own file need to be named again.
    own = [request.recipe] if request.recipe is not None and ":" in request.recipe else []
    words = ["steadeq", "train", *own, "--resume", "--out", str(request.folder.path)]
    if process.world_size > 1:
        words = ["torchrun", "--nproc-per-node", str(process.world_size), "-m", *words]
    if process.is_sharded:
        words += ["--parallel", process.parallel]
    return shlex.join(words)


def _is_lost_peer(error: RuntimeError) -> bool:
    """Tell whether a collective failed because another process has gone."""
    return isinstance(error, dist.DistError) or any(
        word in str(error) for word in ("Connection closed by peer", "Connection reset", "gloo", "NCCL", "socket")
    )
