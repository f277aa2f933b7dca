"""Section 4.1 and its figure: which solver finds the fixed point of a map of one variable, by the slope there."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .. import fixed_point
from ..equilibrium import SolveStats
from ..lab.recipes.registry import Scale
from ..lab.report.style import GRAY, HEIGHT, INK, WIDTH, line_style, styled, use_log_scale
from ..solvers import AbstractSolver, Anderson, Broyden, NewtonKrylov, Picard
from .comparison import save_figures
from .result import Claim, PaperResult, Source, write_csv
from .tables import markdown_table

CENTER = 1.0
"""The fixed point of all maps."""
SLOPES = (-3.0, -1.5, -0.8, 0.8, 1.5, 3.0)
"""Slopes of the maps at their fixed point."""
NUM_STARTS, REACH = 40, 1.0
"""Number of points to start from, and how far the first and the last are from the fixed point."""
MAX_EVALS, TOL, NEAR = 1_000, 1e-8, 1e-6
"""Budget and tolerance of a solve, and how near the fixed point a state has to be to count as having found it."""
DAMPING = 0.25
PLAIN, DAMPED = "plain iteration", f"damped iteration, {DAMPING:g}"
ANDERSON, BROYDEN, NEWTON = "Anderson", "Broyden", "Newton-Krylov"
SOLVERS: Mapping[str, AbstractSolver] = {
    PLAIN: Picard(max_evals=MAX_EVALS, tol=TOL),
    DAMPED: Picard(max_evals=MAX_EVALS, tol=TOL, damping=DAMPING),
    ANDERSON: Anderson(max_evals=MAX_EVALS, tol=TOL),
    BROYDEN: Broyden(max_evals=MAX_EVALS, tol=TOL, memory=10),
    NEWTON: NewtonKrylov(max_evals=MAX_EVALS, tol=TOL),
}
_DRAWN = {0.8: CENTER + 1.9, -1.5: CENTER + 0.4, 1.5: CENTER + 0.4}
"""Slopes that are drawn, and where solvers start then."""


def make_map(slope: float) -> Callable[[Tensor], Tensor]:
    """Return a smooth map that is not linear, with its only fixed point at `CENTER` and this slope there.

    Up to a slope of 1 it is bounded, as cells that end with a normalization are. Beyond it is not: a bounded map that
    leaves its fixed point so steeply has two others, where it is flat.

    Example:
        >>> make_map(-2.0)(torch.tensor([1.0]))
        tensor([1.])
    """
    if slope <= 1:
        return lambda z: CENTER + slope * torch.tanh(z - CENTER)
    # The slope of the bracket is between 0.8 and 1.2, so that f(z) - z grows everywhere for slopes above 1.25.
    return lambda z: CENTER + slope * (z - CENTER + 0.2 * (torch.sqrt(1 + (z - CENTER) ** 2) - 1))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one solver on one map, from all starts."""

    solver: str
    slope: float
    share_found: float
    """Share of the starts from which it found the fixed point."""
    num_evals: float | None
    """Mean number of evaluations of those that found it; None if none did."""
    rate: float | None
    """Factor of the last step of a residual, where all found it."""


Summary = Sequence[Outcome]


def solve(slope: float, solver: AbstractSolver, starts: Tensor) -> tuple[Tensor, SolveStats]:
    """Return the state in which a solver ends from each of the (B, 1) starts."""
    eq = fixed_point(make_map(slope), starts, solver=solver)
    assert eq.stats is not None
    return eq.z, eq.stats


def measure(solver: str, slope: float) -> Outcome:
    """Return what becomes of a solver on the map of a slope."""
    # An even number, so that none of them is the fixed point itself.
    starts = CENTER + torch.linspace(-REACH, REACH, NUM_STARTS, dtype=torch.float64)[:, None]
    z, stats = solve(slope, SOLVERS[solver], starts)
    found = stats.converged & ((z[:, 0] - CENTER).abs() < NEAR)
    evals = stats.num_evals[found].double()
    rate = None
    if bool(found.all()):
        # Each sample's residual at its last evaluation over that at the one before.
        last = stats.num_evals[None] - 1
        now, before = (stats.trace.gather(0, (last - back).clamp(min=0))[0] for back in (0, 1))
        rate = float((now / before).median())
    return Outcome(
        solver=solver,
        slope=slope,
        share_found=float(found.double().mean()),
        num_evals=float(evals.mean()) if len(evals) else None,
        rate=rate,
    )


@torch.no_grad()
def iterates(slope: float, solver: AbstractSolver, num_evals: int) -> list[float]:
    """Return the first points that a solver evaluates, from the start that is drawn."""
    seen: list[float] = []
    f = make_map(slope)

    def watched(z: Tensor) -> Tensor:
        seen.append(float(z))
        return f(z)

    fixed_point(watched, torch.full((1, 1), _DRAWN[slope], dtype=torch.float64), solver=solver)
    return seen[:num_evals]


def draw_cobwebs() -> Figure:
    """Show how plain iteration moves between a map and the diagonal, and where Broyden evaluates the map."""
    low, high = CENTER - 2.2, CENTER + 2.2
    grid = torch.linspace(low, high, 400, dtype=torch.float64)
    with styled():
        figure = Figure(figsize=(0.8 * WIDTH * len(_DRAWN), HEIGHT + 1.0))
        panels = figure.subplots(1, len(_DRAWN), sharey=True)
        for axes, slope in zip(panels, _DRAWN, strict=True):
            f = make_map(slope)
            axes.plot(grid, grid, color=GRAY, linewidth=1, label="z")
            axes.plot(grid, f(grid), color=INK, linewidth=1.4, label="f(z)")
            _draw_cobweb(axes, iterates(slope, SOLVERS[PLAIN], 14))
            points = torch.tensor(iterates(slope, SOLVERS[BROYDEN], 12), dtype=torch.float64)
            color = line_style(1)["color"]
            axes.plot(points, f(points), "o", color=color, markersize=6, markerfacecolor="none", label=BROYDEN)
            axes.plot([CENTER], [CENTER], "*", color=line_style(2)["color"], markersize=11, label="fixed point")
            axes.set(title=f"slope {slope:g}", xlabel="z", xlim=(low, high), ylim=(low, high), aspect="equal")
        panels[0].set_ylabel("f(z)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


def _draw_cobweb(axes: Axes, points: Sequence[float]) -> None:
    xs, ys = [points[0]], [points[0]]
    for here, image in pairwise(points):
        xs += [here, image]
        ys += [image, image]
    axes.plot(xs, ys, color=line_style(0)["color"], linewidth=1.2, label=PLAIN)


def trace(slope: float, solver: AbstractSolver) -> list[float]:
    """Return the residuals of the first evaluations of a solver, from the start that is drawn."""
    start = torch.full((1, 1), _DRAWN[slope], dtype=torch.float64)
    return solve(slope, solver, start)[1].trace[:60, 0].tolist()


def draw_residuals() -> Figure:
    """Show the residuals of all solvers from one start."""
    with styled():
        figure = Figure(figsize=(0.8 * WIDTH * len(_DRAWN), HEIGHT + 0.5))
        panels = figure.subplots(1, len(_DRAWN), sharey=True)
        for axes, slope in zip(panels, _DRAWN, strict=True):
            for index, (name, solver) in enumerate(SOLVERS.items()):
                residuals = trace(slope, solver)
                axes.plot(range(1, len(residuals) + 1), residuals, label=name, **line_style(index))
            axes.set(title=f"slope {slope:g}", xlabel="evaluations", ylim=(1e-12, 30))
            use_log_scale(axes)
        panels[0].set_ylabel("relative residual")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


@dataclass(frozen=True, kw_only=True)
class _Slopes(PaperResult[Summary]):
    rows_key = "outcomes"

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        traces = [
            {"solver": name, "slope": slope, "evaluation": number, "residual": residual}
            for name, solver in SOLVERS.items()
            for slope in _DRAWN
            for number, residual in enumerate(trace(slope, solver), start=1)
        ]
        write_csv(folder / "residuals.csv", traces)
        save_figures({"cobwebs": draw_cobwebs(), "residuals": draw_residuals()}, folder)
        return [measure(solver, slope) for solver in SOLVERS for slope in SLOPES]

    def to_json(self, summary: Summary) -> dict[str, Any]:
        return {"num_starts": NUM_STARTS, "outcomes": [asdict(row) for row in summary]}

    def from_json(self, content: Mapping[str, Any]) -> Summary:
        return [Outcome(**row) for row in content["outcomes"]]

    def table(self, summary: Summary) -> str:
        rows = [[solver, *map(_cell, chosen(summary, [solver]))] for solver in SOLVERS]
        return markdown_table(["solver", *(f"slope {slope:g}" for slope in SLOPES)], rows)


def chosen(
    summary: Summary, solvers: Iterable[str], holds: Callable[[float], bool] = lambda slope: True
) -> list[Outcome]:
    """Return what became of some solvers at the slopes for which something holds."""
    return [row for solver in solvers for row in summary if row.solver == solver and holds(row.slope)]


def _cell(row: Outcome) -> str:
    if row.num_evals is None:
        return "not found"
    return f"{row.num_evals:.1f}" + ("" if row.share_found == 1 else f" ({row.share_found:.0%} found)")


def _listed(rows: Sequence[Outcome]) -> str:
    by_solver = {row.solver: [r for r in rows if r.solver == row.solver] for row in rows}
    return "; ".join(
        f"{solver}: " + ", ".join(f"{row.share_found:.0%} at {row.slope:g}" for row in found)
        for solver, found in by_solver.items()
    )


def _found(
    text: str, solvers: Sequence[str], *, where: Callable[[float], bool], share: float, source: Source = "paper"
) -> Claim[Summary]:
    """Return a claim that solvers find the fixed point from all starts (share 1), or from none (0), at some slopes."""
    return Claim(
        text,
        section="4.1",
        source=source,
        holds=lambda s: all(row.share_found == share for row in chosen(s, solvers, where)),
        evidence=lambda s: f"share of {NUM_STARTS} starts that find it: {_listed(chosen(s, solvers, where))}",
    )


def _contracting(summary: Summary) -> list[Outcome]:
    return chosen(summary, [PLAIN], lambda slope: abs(slope) < 1)


SLOPES_RESULT = _Slopes(
    name="slopes",
    title="Slopes and solvers (section 4.1)",
    statement="where the slope is below 1, plain iteration converges; above, it oscillates or diverges, but the fixed "
    "point is there, and (quasi-)Newton methods find it",
    scales=("cpu",),
    takes="1 min",
    claims=(
        _found(
            "plain iteration converges where the slope at the fixed point is between -1 and 1",
            [PLAIN],
            where=lambda slope: abs(slope) < 1,
            share=1,
        ),
        Claim(
            "its residual shrinks by the slope with each evaluation there (within 1%)",
            section="4.1",
            source="own",
            threshold="stated before",
            holds=lambda s: all(
                row.rate is not None and abs(row.rate / abs(row.slope) - 1) < 0.01 for row in _contracting(s)
            ),
            evidence=lambda s: ", ".join(
                f"{row.slope:g}: " + ("not found" if row.rate is None else f"{row.rate:.4g}") for row in _contracting(s)
            ),
        ),
        _found(
            "plain iteration does not converge where the slope is below -1 or above 1",
            [PLAIN],
            where=lambda slope: abs(slope) > 1,
            share=0,
        ),
        _found(
            "the fixed point exists there all the same, and Newton and quasi-Newton methods find it, as they do at "
            "all other slopes",
            [BROYDEN, NEWTON],
            where=lambda slope: True,
            share=1,
        ),
        _found("Anderson finds it at every slope, too", [ANDERSON], where=lambda slope: True, share=1, source="own"),
        _found(
            f"an iteration damped to {DAMPING:g} finds it where the slope is below 1, also below -1",
            [DAMPED],
            where=lambda slope: slope < 1,
            share=1,
            source="own",
        ),
        _found(
            "it does not where the slope is above 1", [DAMPED], where=lambda slope: slope > 1, share=0, source="own"
        ),
    ),
)
