"""The main job in two minutes: with and without Jacobian regularization, on data that is part of the package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..solvers import Picard
from .config import TrainConfig
from .loading import load_trained
from .recipes import get
from .runner import complete_evaluation, complete_runs
from .runs import Evaluation, RunRecord
from .train import Process
from .train.display import AbstractDisplay
from .train.evaluation import Evaluator

MAX_PLAIN_EVALS = 100


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs on one data set that differ in their regularization."""

    name: str
    """Name of the data set."""
    runs: dict[str, TrainConfig]
    """Configs by the names of the runs' folders."""
    budgets: tuple[int, ...]
    """Budgets at which all of them are evaluated."""
    small_budget: int
    """The one at which they are compared."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the closing table."""

    comparison: str
    """Name of the data set."""
    record: RunRecord
    """The run."""
    score: float | None
    """The task's metric on the test split, at the run's own budget."""
    small_budget: int
    """The budget at which runs are compared."""
    small_score: float | None
    """The metric when stopped at the small budget."""
    num_evals: float | None
    """Evaluations that a sample takes at the run's own budget."""
    plain_evals: float | None
    """Evaluations that plain fixed-point iteration needs on average; `MAX_PLAIN_EVALS` where it does not arrive."""
    residual: float | None
    """Relative residual at the run's own budget."""


def comparisons(seed: int = 0, num_epochs: int | None = None) -> list[Comparison]:
    """Return what the demo trains.

    Args:
        seed: Seed of all runs.
        num_epochs: Instead of those of the recipes.
    """

    def build(name: str) -> TrainConfig:
        config = get(name).build()
        return replace(config, loop=replace(config.loop, seed=seed, num_epochs=num_epochs or config.loop.num_epochs))

    return [
        Comparison(
            name="synthetic",
            runs={name: build(name) for name in ("synthetic", "synthetic-jr")},
            budgets=tuple(range(1, 9)),
            small_budget=4,
        ),
        Comparison(
            name="digits",
            runs={name: build(name) for name in ("digits", "digits-small-budget", "digits-jr")},
            budgets=(1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18),
            small_budget=4,
        ),
    ]


def run_demo(
    folder: Path,
    *,
    seed: int = 0,
    num_epochs: int | None = None,
    num_jobs: int = 2,
    display: AbstractDisplay,
) -> list[Row]:
    """Train and evaluate all runs of the demo; what is finished already is reused.

    Args:
        folder: Where the runs go.
        seed: Seed of all runs.
        num_epochs: Instead of those of the recipes.
        num_jobs: Runs at a time.
        display: Where progress is shown.

    Returns:
        The lines of the table.
    """
    plan = comparisons(seed, num_epochs)
    # The longest first, so that the processors finish together.
    configs = {folder / name: config for comparison in reversed(plan) for name, config in comparison.runs.items()}
    complete_runs(configs, num_jobs=num_jobs, display=display)
    rows = []
    for comparison in plan:
        for name in comparison.runs:
            evaluation = complete_evaluation(folder / name, budgets=comparison.budgets)
            rows.append(_row(comparison, folder / name, evaluation))
    return rows


def _row(comparison: Comparison, path: Path, evaluation: Evaluation) -> Row:
    record = RunRecord.read(path)
    own = evaluation.row(record.config.evaluation_solver.max_evals)
    small = evaluation.row(comparison.small_budget)
    assert own is not None
    assert small is not None
    return Row(
        comparison=comparison.name,
        record=record,
        score=own.score,
        small_budget=comparison.small_budget,
        small_score=small.score,
        num_evals=own.forward_evals,
        plain_evals=_plain_evals(path),
        residual=own.forward_residual,
    )


def _plain_evals(path: Path) -> float | None:
    process = Process.alone()
    trained = load_trained(path, device=process.device)
    config = trained.config
    evaluator = Evaluator(task=config.data.task, process=process)
    solver = Picard(max_evals=MAX_PLAIN_EVALS, tol=config.solver.tol)
    return evaluator.measure(trained.model, config.data.load().test, solver).forward_evals
