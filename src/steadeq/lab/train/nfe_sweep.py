"""A trained run at every budget: the paper's tables of a metric against the number of function evaluations (NFE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..errors import InputError
from ..files import write_atomically
from ..loading import TrainedModel
from ..runs import Evaluation, Split
from .adapter import ModelAdapter
from .distributed import Process
from .evaluation import Evaluator
from .metrics import peak_memory


def sweep_budgets(
    trained: TrainedModel, process: Process, *, budgets: Sequence[int] = (), split: Split = "test"
) -> Evaluation:
    """Return the measurements of a trained model at every budget.

    Args:
        trained: The model, on the device of the process.
        process: Where to compute.
        budgets: Numbers of evaluations; by default from 1 to the budget of the run. An explicit network has a single
            row, of 0.
        split: Which samples.
    """
    config = trained.config
    for budget in budgets:
        if budget < 1:
            raise InputError(f"--budgets has {budget}; each must be at least 1.")
    dataset = getattr(config.data.load(), split)
    task, solver = config.data.task, config.evaluation_solver
    precision = torch.bfloat16 if config.loop.precision == "bfloat16" else None
    evaluator = Evaluator(task=task, process=process, batch_size=config.log.eval_batch_size, precision=precision)
    # Without an equilibrium there is nothing to spend a budget on.
    chosen = budgets or range(1, solver.max_evals + 1) if ModelAdapter(trained.model).has_equilibrium else [1]
    rows = [evaluator.measure(trained.model, dataset, replace(solver, max_evals=budget)) for budget in chosen]
    return Evaluation(
        split=split,
        step=trained.step,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        unit=task.unit,
        memory_mb=peak_memory(process.device),
        rows=tuple(rows),
    )


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write evaluation.json and evaluation.csv."""
    try:
        write_atomically(folder / "evaluation.json", evaluation.to_json())
        write_atomically(folder / "evaluation.csv", evaluation.to_csv())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
