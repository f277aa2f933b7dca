"""A trained run at every budget: the paper's tables of a metric against NFE."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..models import AbstractExplicitModel
from .distributed import Process
from .evaluation import Evaluator
from .files import write_atomically
from .loading import load_model
from .metrics import peak_memory
from .run import Run


def evaluate_budgets(
    run: Run,
    process: Process,
    *,
    budgets: Sequence[int] = (),
    split: str = "test",
    step: int | None = None,
) -> dict[str, Any]:
    """Return the measurements of a run at every budget.

    Args:
        run: The run.
        process: Where to compute.
        budgets: Numbers of evaluations; by default from 1 to the budget of the run. An explicit network has a single
            row, of 0.
        split: Which samples.
        step: Of the checkpoint; the latest if not given.

    Raises:
        InputError: A budget makes no sense, or the run has no checkpoint or no data.
    """
    model, config, step = load_model(run, step=step, device=process.device)
    for budget in budgets:
        if budget < 1:
            raise InputError(f"--budgets has {budget}; each must be at least 1.")
    dataset = getattr(config.data.load(), split)
    task = config.data.task
    precision = torch.bfloat16 if config.loop.precision == "bfloat16" else None
    evaluator = Evaluator(task=task, process=process, batch_size=config.log.eval_batch_size, precision=precision)
    rows = []
    if isinstance(model, AbstractExplicitModel):
        budgets = [0]  # nothing is solved
    for budget in budgets or range(1, config.forward.evaluation_budget + 1):
        rows.append({"max_evals": budget, **evaluator.measure(model, dataset, config.forward.build(max(budget, 1)))})
    return {
        "split": split,
        "step": step,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "unit": task.unit,
        "memory_mb": peak_memory(process.device),
        "rows": rows,
    }


def write_evaluation(folder: Path, result: dict[str, Any]) -> None:
    """Write what `evaluate_budgets` returned as evaluation.json and evaluation.csv.

    Raises:
        InputError: The folder cannot be written.
    """
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(result["rows"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(result["rows"])
    try:
        write_atomically(folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
        write_atomically(folder / "evaluation.csv", table.getvalue())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
