"""`steadeq demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..demo import Row, run_demo
from ..errors import InputError
from ..report import write_report
from ..report.notation import error_note
from ..runs import RunRecord
from ..train.display import choose_display
from .arguments import parse
from .table import format_metric, format_number, print_table


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


def run(arguments: Sequence[str]) -> int:
    """Compare training with and without Jacobian regularization on embedded data."""
    args = parse(
        Arguments,
        arguments,
        command="demo",
        summary="Compare training with and without Jacobian regularization on embedded data.",
    )
    if args.jobs < 1:
        raise InputError(f"--jobs is {args.jobs}; it must be at least 1.")
    rows = run_demo(args.out, seed=args.seed, num_epochs=args.num_epochs, num_jobs=args.jobs, display=choose_display())
    report = args.out / "report.html"
    # The images first: what they show is what the page is about.
    records: list[RunRecord] = [row.record for row in reversed(rows)]
    write_report(records, report, title="Why Jacobian regularization works")
    _print(rows)
    print("evals: evaluations of f a sample; plain: what plain iteration without Anderson needs, at most 100;")
    print("residual: ‖f(z) - z‖ / ‖f(z)‖; radius: spectral radius of the Jacobian, above 1 plain iteration diverges.")
    print(f"Open {report} in a browser: it shows why.")
    return 0


def _print(rows: Sequence[Row]) -> None:
    for name in dict.fromkeys(row.comparison for row in rows):
        mine = [row for row in rows if row.comparison == name]
        metric = mine[0].record.metric
        stopped = f"at {mine[0].small_budget} evals"
        columns = ["run", f"test {metric}", "evals", "plain", stopped, "residual", "‖J‖²_F/d", "radius", "ms/step"]
        print_table(
            columns, [_cells(row) for row in mine], title=f"{name}: with (-jr) and without Jacobian regularization"
        )


def _cells(row: Row) -> list[str]:
    record = row.record
    last = record.validations[-1]
    seconds = record.seconds_per_step
    return [
        record.name,
        format_metric(record.metric, row.score),
        format_number(row.num_evals, ".1f"),
        format_number(row.plain_evals, ".1f"),
        format_metric(record.metric, row.small_score),
        format_number(row.residual, ".1e"),
        format_number(last.jacobian_norm, ".3f"),
        format_number(last.spectral_radius, ".2f")
        + error_note(last.spectral_radius_error, last.spectral_radius_unknown),
        format_number(None if seconds is None else 1e3 * seconds, ".1f"),
    ]
