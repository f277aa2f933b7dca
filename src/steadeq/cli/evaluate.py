"""`steadeq evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from .. import recipes as recipes  # configs of runs name its classes
from ..train import Process, Run
from ..train.budgets import evaluate_budgets, write_evaluation
from .arguments import parse
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `evaluate` takes."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    budgets: tuple[int, ...] = ()
    """Numbers of evaluations to allow; by default from 1 to the budget of the run."""
    split: Literal["test", "validation"] = "test"
    """Which samples."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    device: str = "auto"
    """auto, cpu, cuda ..."""


def run(arguments: Sequence[str]) -> int:
    """Measure a run at every budget, print the table, and write it as JSON and CSV."""
    given = parse(
        Arguments, arguments, command="evaluate", summary="Task metric of a run against the number of evaluations."
    )
    run = Run.open(given.run)
    with Process.join(given.device) as process:
        result = evaluate_budgets(run, process, budgets=given.budgets, split=given.split, step=given.step)
    write_evaluation(run.path, result)
    metric = result["metric"]
    title = f"{run.path} at step {result['step']}, {result['split']} split, peak memory {result['memory_mb']:.0f} MB"
    rows = [
        [
            str(row["max_evals"]),
            format_metric(metric, row[metric]),
            f"{row['loss']:.4g}",
            *_solves(row),
            f"{row['seconds_per_sample'] * 1e3:.3g}",
        ]
        for row in result["rows"]
    ]
    print_table(["NFE", metric, "loss", "residual", "NFE used", "converged", f"ms/{result['unit']}"], rows, title=title)
    print(f"Written to {run.path / 'evaluation.json'} and {run.path / 'evaluation.csv'}.")
    return 0


def _solves(row: dict[str, float]) -> list[str]:
    if "forward_evals" not in row:
        return ["", "", ""]
    return [f"{row['forward_residual']:.2e}", f"{row['forward_evals']:.2f}", f"{row['converged']:.0%}"]


def format_metric(name: str, value: float) -> str:
    """Return a metric as people write it.

    Example:
        >>> format_metric("accuracy", 0.983), format_metric("mse", 0.00312)
        ('98.30%', '0.00312')
    """
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
