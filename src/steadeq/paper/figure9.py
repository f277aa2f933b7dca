"""Figure 9: convergence of the backward solves, and the norm of the Jacobian, over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ..lab.report import RunGroup
from ..lab.report.curves import evals_figure, jacobian_figure, residual_by_jacobian_figure, residual_figure
from .result import Verdict
from .variant import find
from .study import Summary, compare
from .table import Column, show
from .wikitext import DATA, POST, POST_JR, WEIGHT_DECAY, entries_of

_NAMES = (POST, WEIGHT_DECAY, POST_JR)


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    return {
        "backward_residual": residual_figure(groups, "backward"),
        "backward_evaluations": evals_figure(groups, "backward"),
        "jacobian_norm": jacobian_figure(groups),
        "residual_by_jacobian_norm": residual_by_jacobian_figure(groups),
    }


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    plain, decayed, regularized = (find(summary, name) for name in _NAMES)

    def products(*rows: Mapping[str, Any]) -> str:
        return " against ".join(show(row, "backward_evals", digits=".1f") for row in rows)

    def norms(entry: Mapping[str, Any]) -> str:
        return f"{entry['early_jacobian_norm']:.3g} to {entry['jacobian_norm']:.3g}"

    return [
        Verdict.of(
            "regularization makes backward solves converge sooner",
            regularized["backward_evals"] < plain["backward_evals"],
            f"{products(regularized, plain)} products",
        ),
        Verdict.of(
            "the norm of the Jacobian grows in training, also with weight decay, and even with regularization",
            all(row["jacobian_norm"] > row["early_jacobian_norm"] for row in (plain, decayed, regularized)),
            f"{norms(plain)}, with weight decay {norms(decayed)}, regularized {norms(regularized)}",
        ),
    ]


_COLUMNS = (
    Column(title="products, last tenth", measure="backward_evals", digits=".1f"),
    Column(title="backward residual, last tenth", measure="backward_residual", digits=".1g"),
    Column(title="‖J‖²_F / d", measure="jacobian_norm", digits=".3f"),
)

FIGURE9 = compare(
    name="fig9",
    claim="regularization helps backward solves too; the norm of the Jacobian grows nevertheless",
    data=DATA,
    duration={"cpu": "35 min", "paper": "weeks on 4 GPUs"},
    entries=entries_of(*_NAMES),
    figures=draw,
    judge=judge,
    columns=_COLUMNS,
)
