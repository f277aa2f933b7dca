"""`steadeq demo`: the main job in two minutes, on data that is part of the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..._internal.validation import check_count
from ...solvers import Picard
from .. import recipes
from ..config import TrainConfig
from ..loading import load_trained
from ..report import write_report
from ..report.notation import error_note
from ..runner import complete_evaluation, complete_runs
from ..runs import RunRecord
from ..train import Process
from ..train.display import choose_display
from ..train.evaluation import Evaluator
from .arguments import parse
from .table import format_metric, format_number, print_table

_MAX_PLAIN_EVALS = 100
_SMALL_BUDGET = 4
"""The budget at which runs are compared."""
_RUNS = {"synthetic": ("synthetic", "synthetic-jr"), "digits": ("digits", "digits-small-budget", "digits-jr")}
"""The recipes of each data set, which differ in their regularization."""
_BUDGETS = {"synthetic": tuple(range(1, 9)), "digits": (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18)}
"""The budgets at which the runs of each data set are evaluated."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `demo`."""

    out: Path = Path("runs/demo")
    """Folder for runs and report; what is finished there already is reused."""
    seed: int = 0
    """Seed of all runs."""
    num_epochs: int | None = None
    """Epochs of every run, for an even shorter look; by default those of the recipes."""
    jobs: int = 2
    """Runs at a time."""

    def __post_init__(self) -> None:
        check_count("jobs", self.jobs)
        if self.num_epochs is not None:
            check_count("num_epochs", self.num_epochs)


def run(arguments: Sequence[str]) -> int:
    """Compare training with and without Jacobian regularization on embedded data."""
    summary = "Compare training with and without Jacobian regularization on embedded data."
    args = parse(Arguments, arguments, command="demo", summary=summary)
    # The longest first, so that the processors finish together.
    configs = {args.out / name: _config(name, args) for data in reversed(_RUNS) for name in _RUNS[data]}
    complete_runs(configs, num_jobs=args.jobs, display=choose_display())
    records: dict[str, RunRecord] = {}
    for data, names in _RUNS.items():
        for name in names:
            complete_evaluation(args.out / name, budgets=_BUDGETS[data])
            records[name] = RunRecord.read(args.out / name)
    report = args.out / "report.html"
    # The images first: what they show is what the page is about.
    write_report([*reversed(records.values())], report, title="Why Jacobian regularization works")
    for data, names in _RUNS.items():
        metric, stopped = records[names[0]].metric, f"at {_SMALL_BUDGET} evals"
        print_table(
            ["run", f"test {metric}", "evals", "plain", stopped, "residual", "‖J‖²_F/d", "radius", "ms/step"],
            [_cells(records[name]) for name in names],
            title=f"{data}: with (-jr) and without Jacobian regularization",
        )
    print("evals: evaluations of f a sample; plain: what plain iteration without Anderson needs, at most 100;")
    print("residual: ‖f(z) - z‖ / ‖f(z)‖; radius: spectral radius of the Jacobian, above 1 plain iteration diverges.")
    print(f"Open {report} in a browser: it shows why.")
    return 0


def _config(name: str, args: Arguments) -> TrainConfig:
    config = recipes.get(name).build()
    num_epochs = config.loop.num_epochs if args.num_epochs is None else args.num_epochs
    return replace(config, loop=replace(config.loop, seed=args.seed, num_epochs=num_epochs))


def _cells(record: RunRecord) -> list[str]:
    """Return a run's line of the closing table."""
    evaluation = record.evaluation
    assert evaluation is not None
    own, small = evaluation.row(record.config.evaluation_solver.max_evals), evaluation.row(_SMALL_BUDGET)
    assert own is not None
    assert small is not None
    last, seconds = record.validations[-1], record.seconds_per_step
    return [
        record.name,
        format_metric(record.metric, own.score),
        format_number(own.forward_evals, ".1f"),
        format_number(_plain_evals(record.path), ".1f"),
        format_metric(record.metric, small.score),
        format_number(own.forward_residual, ".1e"),
        format_number(last.jacobian_norm, ".3f"),
        format_number(last.spectral_radius, ".2f")
        + error_note(last.spectral_radius_error, last.spectral_radius_unknown),
        format_number(None if seconds is None else 1e3 * seconds, ".1f"),
    ]


def _plain_evals(path: Path) -> float | None:
    """Return the evaluations that plain iteration needs on average; all that it may spend where it does not arrive."""
    process = Process.alone()
    trained = load_trained(path, device=process.device)
    config = trained.config
    evaluator = Evaluator(task=config.data.task, process=process)
    solver = Picard(max_evals=_MAX_PLAIN_EVALS, tol=config.solver.tol)
    return evaluator.measure(trained.model, config.data.load_split("test"), solver).forward_evals
