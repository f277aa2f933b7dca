"""The main job in two minutes: with and without Jacobian regularization, on data that is part of the package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import recipes
from ..solvers import Picard
from ..train import Process, Run, TrainConfig
from ..train.display import AbstractDisplay
from ..train.evaluation import Evaluator
from ..train.loading import load_model
from .completion import complete_evaluation
from .pool import complete_runs

MAX_PLAIN_EVALS = 100


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs on one dataset that differ in their regularization."""

    name: str
    runs: dict[str, TrainConfig]
    """By the name of the run's folder."""
    budgets: tuple[int, ...]
    """At which all of them are evaluated."""
    small_budget: int
    """The one at which they are compared."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the closing table."""

    study: str
    name: str
    metric: str
    score: float
    """On the test split, at the run's own budget."""
    small_budget: int
    small_score: float
    """The same when stopped at the small budget."""
    num_evals: float
    plain_evals: float
    """Evaluations that plain fixed-point iteration needs on average; `MAX_PLAIN_EVALS` where it does not arrive."""
    residual: float
    jacobian_norm: float
    spectral_radius: float
    spectral_radius_error: float | None
    """Mean over the samples where it is known."""
    spectral_radius_unknown: float | None
    """Share of samples where it is not."""
    seconds_per_step: float


def studies(seed: int = 0, num_epochs: int | None = None) -> list[Study]:
    """Return what the demo trains.

    Args:
        seed: The same for all runs.
        num_epochs: Instead of those of the recipes.
    """

    def build(name: str, weight: float | None = None) -> TrainConfig:
        config = recipes.get(name).build()
        loop = replace(config.loop, seed=seed, num_epochs=num_epochs or config.loop.num_epochs)
        jacobian = config.jacobian if weight is None else replace(config.jacobian, weight=weight)
        return replace(config, loop=loop, jacobian=jacobian)

    return [
        Study(
            name="synthetic",
            runs={"synthetic": build("synthetic"), "synthetic-jr": build("synthetic-jr")},
            budgets=tuple(range(1, 9)),
            small_budget=4,
        ),
        Study(
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
) -> tuple[list[Run], list[Row]]:
    """Train and evaluate all runs of the demo; what is finished already is reused.

    Args:
        folder: Where the runs go.
        seed: The same for all runs.
        num_epochs: Instead of those of the recipes.
        num_jobs: Runs at a time.
        display: Where progress is shown.

    Returns:
        The runs, and the lines of the table.
    """
    plan = studies(seed, num_epochs)
    # The longest first, so that the processors finish together.
    configs = {folder / name: config for study in reversed(plan) for name, config in study.runs.items()}
    complete_runs(configs, num_jobs=num_jobs, display=display)
    runs, rows = [], []
    for study in plan:
        for name in study.runs:
            run = Run.open(folder / name)
            evaluation = complete_evaluation(run, process=Process(), budgets=study.budgets)
            runs.append(run)
            rows.append(_row(study, name, run, evaluation, _plain_evals(run)))
    return runs, rows


def _plain_evals(run: Run) -> float:
    model, config, _ = load_model(run)
    evaluator = Evaluator(task=config.data.task, process=Process())
    solver = Picard(max_evals=MAX_PLAIN_EVALS, tol=config.forward.tol)
    return evaluator.measure(model, config.data.load().test, solver)["forward_evals"]


def _row(study: Study, name: str, run: Run, evaluation: dict[str, Any], plain_evals: float) -> Row:
    config, metrics = run.config(), run.metrics()
    last = [record for record in metrics if record["event"] == "evaluation"][-1]
    steps = [record["seconds"] for record in metrics if record["event"] == "train"]
    by_budget = {row["max_evals"]: row for row in evaluation["rows"]}
    own = by_budget[config.forward.evaluation_budget]
    metric = evaluation["metric"]
    return Row(
        study=study.name,
        name=name,
        metric=metric,
        score=own[metric],
        small_budget=study.small_budget,
        small_score=by_budget[study.small_budget][metric],
        num_evals=own["forward_evals"],
        plain_evals=plain_evals,
        residual=own["forward_residual"],
        jacobian_norm=last["jacobian_norm"],
        spectral_radius=last["spectral_radius"],
        spectral_radius_error=last.get("spectral_radius_error"),
        spectral_radius_unknown=last.get("spectral_radius_unknown"),
        seconds_per_step=sorted(steps)[len(steps) // 2],
    )
