"""`steadeq evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ...models.pretrained import is_pretrained
from ...models.transformer import is_language_model, vocabulary_size
from ...nn import DEQ
from ...solvers import AbstractSolver
from ..config import LogConfig, TrainConfig
from ..data import AbstractDataConfig, MapDataset, read_samples
from ..errors import InputError
from ..run.loading import TrainedModel, load_model, load_trained
from ..run.record import EvaluationRow, Split
from ..serialization import class_name, subclasses
from ..tasks import AbstractTask, Classification, LanguageModeling
from ..terminal import answer, note
from ..train import Process
from ..train.adapter import ModelAdapter
from ..train.evaluation import sweep_budgets, write_evaluation
from .arguments import parse, positional
from .table import format_number, print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `evaluate`."""

    run: Path = positional()
    """Folder of a run, or of a model (see `steadeq convert`)."""
    data: AbstractDataConfig | None = None
    """For the folder of a model: the data, such as cifar10, imagenet or wikitext-103; a run has its own."""
    budgets: tuple[int, ...] = ()
    """Budgets to measure, in evaluations per solve; by default from 1 to the budget of the solver."""
    split: Split = "test"
    """Which samples."""
    solver: AbstractSolver | None = None
    """How equilibria are found, instead of the run's or the model's own solver."""
    batch_size: int | None = None
    """Samples per batch, or streams that a text is cut into; by default as in the run, and else 250, or 16 streams."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function. The file is executed."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda ..."""

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"--batch-size is {self.batch_size}; it must be at least 1.")


def run(arguments: Sequence[str]) -> int:
    """Measure a model at every budget, print the table, and write it as JSON and CSV."""
    summary = "Measure the task metric of a run or a model against the number of evaluations."
    args = parse(Arguments, name_data_classes(arguments), command="evaluate", summary=summary)
    is_run = not is_pretrained(args.run)
    with Process.join(args.device) as process:
        trained, dataset = (_load_run(args, process), None) if is_run else _load_folder(args, process)
        result = sweep_budgets(
            trained, process, budgets=args.budgets, split=args.split, dataset=dataset, solver=args.solver
        )
    write_evaluation(args.run, result)
    memory = format_number(result.memory_mb, ".0f")
    what = f"at step {result.step}" if is_run else f"on {trained.config.data.name}"
    title = f"{args.run} {what}, {result.split} split, peak memory {memory} MB"
    columns = ["evaluations", result.metric, "loss", "residual", "used", "converged", f"ms/{result.unit}"]
    rows = [_cells(row, trained.config.data.task) for row in result.rows]
    if all(row.converged is None for row in result.rows):
        # Without a tolerance there is nothing to converge to.
        index = columns.index("converged")
        columns, rows = _without(columns, index), [_without(row, index) for row in rows]
    print_table(columns, rows, title=title)
    note("evaluations: budget of a solve (the paper's NFE); used: evaluations that it made, on average")
    note(f"Written to {args.run / 'evaluation.json'} and {args.run / 'evaluation.csv'}.")
    answer(json.loads(result.to_json()))
    return 0


def _without(cells: Sequence[str], index: int) -> list[str]:
    return [*cells[:index], *cells[index + 1 :]]


def name_data_classes(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with data by its class, as all objects are given, and not by its name."""
    kinds = [kind for kind in subclasses(AbstractDataConfig) if hasattr(kind, "name")]
    names = {f"--data={kind.name}": f"--data={class_name(kind)}" for kind in kinds}
    joined = "\0".join(arguments).replace("--data\0", "--data=").split("\0")
    return [names.get(argument, argument) for argument in joined]


def _load_run(args: Arguments, process: Process) -> TrainedModel:
    if args.data is not None:
        raise InputError(
            f"{args.run} is not the folder of a model; leave out --data, as a run is evaluated on its own data."
        )
    trained = load_trained(args.run, step=args.step, device=process.device, recipe=args.recipe)
    config = trained.config
    if args.batch_size is not None:
        config = replace(config, log=replace(config.log, eval_batch_size=args.batch_size))
    return replace(trained, config=config)


def _load_folder(args: Arguments, process: Process) -> tuple[TrainedModel, MapDataset]:
    """Return the model of a folder with the config of a run that would have made it, and the samples."""
    model = load_model(args.run, step=args.step, device=process.device, recipe=args.recipe)
    data = args.data
    if data is None:
        raise InputError(f"{args.run} holds a model without data; name a data set, as in --data cifar10.")
    dataset = _read_fitting(args, model, data, process.device)
    batch_size = args.batch_size or data.eval_batch_size
    config = TrainConfig(model=model.config, data=data, log=LogConfig(eval_batch_size=batch_size))  # pyright: ignore
    layer = getattr(model, "layer", None)
    solver = layer.solver if isinstance(layer, DEQ) else config.solver
    return TrainedModel(path=args.run, model=model, config=replace(config, solver=solver), step=0), dataset


@torch.no_grad()
def _read_fitting(args: Arguments, model: nn.Module, data: AbstractDataConfig, device: torch.device) -> MapDataset:
    """Return the samples; refuse those of which the model would make nothing, or nothing sensible."""
    is_text = isinstance(data.task, LanguageModeling)
    if is_language_model(model) != is_text:
        kind = (
            "not text, but the model is a language model"
            if not is_text
            else "text, but the model is not a language model"
        )
        raise InputError(f"{data.name} does not fit the model of {args.run}: it is {kind}.")
    if (vocabulary := data.vocabulary()) is not None:
        num_tokens, size = len(vocabulary), vocabulary_size(model)
        if num_tokens != size:
            raise InputError(
                f"{data.name} does not fit the model of {args.run}: it has {num_tokens} tokens, and the model has "
                f"{size}."
            )
    dataset = data.load_split(args.split)
    try:
        x, y = (tensor.to(device) for tensor in read_samples(dataset, torch.arange(1)))
        output = ModelAdapter(model)(x, depth=1).output
        data.task.check(output, y)
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{data.name} does not fit the model of {args.run}: {str(error).splitlines()[0]}") from error
    if isinstance(data.task, Classification):
        targets = getattr(dataset, "targets", None)
        num_classes = output.shape[1] if targets is None else 1 + int(targets.max())
        if num_classes != output.shape[1]:
            raise InputError(
                f"{data.name} does not fit the model of {args.run}: it has {num_classes} classes, but the model has "
                f"{output.shape[1]}."
            )
    return dataset


def _cells(row: EvaluationRow, task: AbstractTask) -> list[str]:
    seconds = row.seconds_per_sample
    return [
        str(row.max_evals),
        task.show(row.score, digits=4),
        format_number(row.loss, ".4g"),
        format_number(row.forward_residual, ".2e"),
        format_number(row.forward_evals, ".2f"),
        format_number(row.converged, ".0%"),
        format_number(None if seconds is None else 1e3 * seconds, ".3g"),
    ]
