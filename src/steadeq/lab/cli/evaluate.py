"""`steadeq evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..loading import load_trained
from ..runs import EvaluationRow, Split
from ..train import Process
from ..train.evaluation import sweep_budgets, write_evaluation
from .arguments import parse, positional
from .table import format_metric, format_number, print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `evaluate`."""

    run: Path = positional()
    """Folder of the run."""
    budgets: tuple[int, ...] = ()
    """Numbers of evaluations to allow; by default from 1 to the budget of the run."""
    split: Split = "test"
    """Which samples."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function. The file is executed."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda ..."""


def run(arguments: Sequence[str]) -> int:
    """Measure a run at every budget, print the table, and write it as JSON and CSV."""
    summary = "Task metric of a run against the number of evaluations."
    args = parse(Arguments, arguments, command="evaluate", summary=summary)
    with Process.join(args.device) as process:
        trained = load_trained(args.run, step=args.step, device=process.device, recipe=args.recipe)
        result = sweep_budgets(trained, process, budgets=args.budgets, split=args.split)
    write_evaluation(args.run, result)
    memory = format_number(result.memory_mb, ".0f")
    title = f"{args.run} at step {result.step}, {result.split} split, peak memory {memory} MB"
    columns = ["NFE", result.metric, "loss", "residual", "NFE used", "converged", f"ms/{result.unit}"]
    print_table(columns, [_cells(row, result.metric) for row in result.rows], title=title)
    print("NFE: the number of evaluations of f that a solve may spend.")
    print(f"Written to {args.run / 'evaluation.json'} and {args.run / 'evaluation.csv'}.")
    return 0


def _cells(row: EvaluationRow, metric: str) -> list[str]:
    seconds = row.seconds_per_sample
    return [
        str(row.max_evals),
        format_metric(metric, row.score),
        format_number(row.loss, ".4g"),
        format_number(row.forward_residual, ".2e"),
        format_number(row.forward_evals, ".2f"),
        format_number(row.converged, ".0%"),
        format_number(None if seconds is None else 1e3 * seconds, ".3g"),
    ]
