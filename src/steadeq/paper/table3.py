"""Table 3: the weight of the penalty against the evaluations that inference may spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from ..lab.recipes.registry import Scale
from ..lab.report import RunGroup
from ..lab.report.curves import jacobian_figure, score_by_evals_figure, spectral_radius_figure
from .result import Verdict
from .variant import Entry, find
from .results import tabulate
from .study import Summary, compare
from .table import show

SMALL, MEDIUM, LARGE = 0.1, 0.6, 1.2
BUDGETS = (1, 2, 3, 4, 5, 6)
_FEW, _MANY = 3, 6
_PAPER = {
    SMALL: ("82.4", "89.7", "91.9", "92.3", "92.7", "92.9"),
    MEDIUM: ("85.8", "91.5", "92.7", "93.0", "93.0", "93.1"),
    LARGE: ("84.4", "89.6", "92.2", "92.6", "92.7", "92.7"),
}


def entries(scale: Scale) -> list[Entry]:
    """Return an entry for each cell of the table; those of a row share their runs."""
    return [
        Entry(
            name=_name(gamma, budget),
            recipe="cifar10-mdeq-cpu-jr" if scale == "cpu" else "cifar10-mdeq-jr",
            max_evals=budget,
            seeds=(0,),
            changes={"jacobian.weight": gamma},
            paper={"accuracy": accuracy},
        )
        for gamma, row in _PAPER.items()
        for budget, accuracy in zip(BUDGETS, row, strict=True)
    ]


def _name(gamma: float, budget: int) -> str:
    return f"γ = {gamma:g}, NFE = {budget}"


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    groups = [replace(group, label=group.label.split(",")[0]) for group in groups]
    return {
        "accuracy_by_evaluations": score_by_evals_figure(groups),
        "jacobian_norm": jacobian_figure(groups),
        "spectral_radius": spectral_radius_figure(groups),
    }


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""

    def at(gamma: float, budget: int) -> Mapping[str, Any]:
        return find(summary, _name(gamma, budget))

    def loss(gamma: float) -> float:
        return at(gamma, _MANY)["score"] - at(gamma, _FEW)["score"]

    def accuracies(gamma: float, *budgets: int) -> str:
        listed = (f"{show(at(gamma, n), 'score', factor=100, digits='.1f')}% at {n}" for n in budgets)
        return f"gamma {gamma:g}: {', '.join(listed)}"

    return [
        Verdict.of(
            f"a small gamma needs more evaluations: at {_FEW} instead of {_MANY}, gamma {SMALL:g} loses more than "
            f"gamma {LARGE:g}",
            loss(SMALL) > loss(LARGE),
            f"{accuracies(SMALL, _FEW, _MANY)}; {accuracies(LARGE, _FEW, _MANY)}",
        ),
        Verdict.of(
            f"a large gamma converges at once: gamma {LARGE:g} at {_FEW} evaluations is within 1 point of {_MANY}",
            loss(LARGE) <= 0.01,
            accuracies(LARGE, *BUDGETS),
        ),
        Verdict.of(
            f"a large gamma costs accuracy: at {_MANY} evaluations gamma {LARGE:g} is below gamma {MEDIUM:g}",
            at(LARGE, _MANY)["score"] < at(MEDIUM, _MANY)["score"],
            f"{accuracies(LARGE, _MANY)}; {accuracies(MEDIUM, _MANY)}",
        ),
    ]


def table(content: Mapping[str, Any]) -> str:
    """Return the numbers of `summary.json` as a table in Markdown: a row for each gamma, one of the paper below it."""
    rows = []
    for gamma in _PAPER:
        cells = [find(content["entries"], _name(gamma, budget)) for budget in BUDGETS]
        rows.append([f"γ = {gamma:g}", *(show(cell, "score", factor=100, digits=".1f") for cell in cells)])
        rows.append(["paper", *(cell["paper"]["accuracy"] for cell in cells)])
    return tabulate(["test accuracy, %", *(f"NFE = {budget}" for budget in BUDGETS)], rows)


TABLE3 = replace(
    compare(
        name="table3",
        claim="a small gamma needs more evaluations; a large one converges at once, and costs accuracy",
        data={"cpu": "cifar10", "paper": "cifar10"},
        duration={"cpu": "10 min", "paper": "days on 4 GPUs"},
        entries=entries,
        figures=draw,
        judge=judge,
        columns=(),
    ),
    tabulate=table,
)
