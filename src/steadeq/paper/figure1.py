"""Figure 1: solves get worse as a DEQ trains, together with the norm of its Jacobian, and cost time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ..lab.report import RunGroup
from ..lab.report.curves import evals_figure, residual_by_jacobian_figure, residual_figure, score_by_time_figure
from .result import Verdict
from .variant import find
from .study import Summary, compare
from .table import Column, show
from .wikitext import DATA, POST, POST_JR, entries_of

_NAMES = (POST, POST_JR)


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    return {
        "forward_residual": residual_figure(groups),
        "backward_residual": residual_figure(groups, "backward"),
        "forward_evaluations": evals_figure(groups),
        "residual_by_jacobian_norm": residual_by_jacobian_figure(groups),
        "perplexity_by_time": score_by_time_figure(groups),
    }


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    plain, regularized = (find(summary, name) for name in _NAMES)

    def growth(entry: Mapping[str, Any]) -> str:
        return f"{show(entry, 'early_evals', digits='.1f')} to {show(entry, 'train_evals', digits='.1f')}"

    return [
        Verdict.of(
            "without regularization, solves take at least twice as many evaluations at the end of training as at "
            "its beginning",
            plain["train_evals"] >= 2 * plain["early_evals"],
            growth(plain),
        ),
        Verdict.of(
            "with regularization, they do not",
            regularized["train_evals"] < 2 * regularized["early_evals"],
            growth(regularized),
        ),
        Verdict.of(
            "the regularized model ends with the smaller Jacobian norm and the smaller residual",
            regularized["jacobian_norm"] < plain["jacobian_norm"]
            and regularized["train_residual"] < plain["train_residual"],
            f"‖J‖²/d {show(regularized, 'jacobian_norm')} against {show(plain, 'jacobian_norm')}, residual "
            f"{show(regularized, 'train_residual', digits='.2g')} against "
            f"{show(plain, 'train_residual', digits='.2g')}",
        ),
    ]


_COLUMNS = (
    Column(title="evaluations, first tenth", measure="early_evals", digits=".1f"),
    Column(title="evaluations, last tenth", measure="train_evals", digits=".1f"),
    Column(title="residual, first tenth", measure="early_residual", digits=".1g"),
    Column(title="residual, last tenth", measure="train_residual", digits=".1g"),
    Column(title="backward residual, last tenth", measure="backward_residual", digits=".1g"),
    Column(title="‖J‖²_F / d", measure="jacobian_norm", digits=".3f"),
)

FIGURE1 = compare(
    name="fig1",
    claim="solves get worse as an unregularized DEQ trains, as the norm of its Jacobian grows",
    data=DATA,
    duration={"cpu": "30 min", "paper": "weeks on 4 GPUs"},
    entries=entries_of(*_NAMES),
    figures=draw,
    judge=judge,
    columns=_COLUMNS,
)
