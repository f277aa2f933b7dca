"""`steadeq demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..experiments.demo import Row, run_demo
from ..report import RunSummary, write_report
from ..report.notation import error_note
from ..train.display import choose_display
from .arguments import parse
from .evaluate import format_metric
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `demo` takes."""

    out: Path = Path("runs/demo")
    """Where runs and report go; what is finished there already is reused."""
    seed: int = 0
    """Of all runs."""
    num_epochs: int | None = None
    """Instead of those of the recipes, for an even shorter look."""
    jobs: int = 2
    """Runs at a time."""


def run(arguments: Sequence[str]) -> int:
    """Compare training with and without Jacobian regularization on embedded data."""
    given = parse(
        Arguments,
        arguments,
        command="demo",
        summary="Compare training with and without Jacobian regularization on embedded data.",
    )
    if given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}; it must be at least 1.")
    runs, rows = run_demo(
        given.out, seed=given.seed, num_epochs=given.num_epochs, num_jobs=given.jobs, display=choose_display()
    )
    report = given.out / "report.html"
    # The images first: what they show is what the page is about.
    write_report([RunSummary.read(run) for run in reversed(runs)], report, title="Why Jacobian regularization works")
    _print(rows)
    print("evals: evaluations of f a sample; plain: what plain iteration without Anderson needs, at most 100;")
    print("residual: ‖f(z) - z‖ / ‖f(z)‖; radius: spectral radius of the Jacobian, above 1 plain iteration diverges.")
    print(f"Open {report} in a browser: it shows why.")
    return 0


def _print(rows: Sequence[Row]) -> None:
    for study in dict.fromkeys(row.study for row in rows):
        mine = [row for row in rows if row.study == study]
        metric = mine[0].metric
        cells = [
            [
                row.name,
                format_metric(metric, row.score),
                f"{row.num_evals:.1f}",
                f"{row.plain_evals:.1f}",
                format_metric(metric, row.small_score),
                f"{row.residual:.1e}",
                f"{row.jacobian_norm:.3f}",
                f"{row.spectral_radius:.2f}{error_note(row.spectral_radius_error, row.spectral_radius_unknown)}",
                f"{row.seconds_per_step * 1e3:.1f}",
            ]
            for row in mine
        ]
        stopped = f"at {mine[0].small_budget} evals"
        columns = ["run", f"test {metric}", "evals", "plain", stopped, "residual", "‖J‖²_F/d", "radius", "ms/step"]
        print_table(columns, cells, title=f"{study}: with (-jr) and without Jacobian regularization")
