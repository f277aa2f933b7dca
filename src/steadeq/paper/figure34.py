"""Figures 3 and 4: small changes of the architecture make a DEQ-Transformer unstable, unless it is regularized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ..lab.report import RunGroup
from ..lab.report.curves import evals_figure, residual_figure, score_figure
from .result import Verdict
from .variant import find
from .study import Summary, compare
from .table import Column, show
from .wikitext import DATA, NO_WEIGHT_NORM, POST, POST_JR, PRE, PRE_JR, entries_of

_NAMES = (POST, PRE, NO_WEIGHT_NORM, POST_JR, PRE_JR)


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    return {
        "forward_residual": residual_figure(groups),
        "backward_residual": residual_figure(groups, "backward"),
        "forward_evaluations": evals_figure(groups),
        "perplexity": score_figure(groups),
    }


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    post, pre, plain_weights, post_jr, pre_jr = (find(summary, name) for name in _NAMES)

    def is_worse(entry: Mapping[str, Any], than: Mapping[str, Any]) -> bool:
        return entry["diverged"] > than["diverged"] or entry["train_residual"] > 2 * than["train_residual"]

    def residuals(*rows: Mapping[str, Any]) -> str:
        return " against ".join(show(row, "train_residual", digits=".2g") for row in rows)

    return [
        Verdict.of(
            "pre-LN is less stable than post-LN (diverges, or ends with twice the residual)",
            is_worse(pre, post),
            residuals(pre, post),
        ),
        Verdict.of(
            "without weight normalization post-LN is less stable (diverges, or ends with twice the residual)",
            is_worse(plain_weights, post),
            residuals(plain_weights, post),
        ),
        Verdict.of(
            "regularized, both post-LN and pre-LN end with a smaller residual, with fewer evaluations",
            all(
                regularized["diverged"] == 0
                and regularized["train_residual"] < plain["train_residual"]
                and regularized["train_evals"] < plain["train_evals"]
                for regularized, plain in ((post_jr, post), (pre_jr, pre))
            ),
            f"post-LN {residuals(post_jr, post)}, pre-LN {residuals(pre_jr, pre)}",
        ),
    ]


_COLUMNS = (
    Column(title="perplexity", measure="score", digits=".1f"),
    Column(title="evaluations, last tenth", measure="train_evals", digits=".1f"),
    Column(title="residual, last tenth", measure="train_residual", digits=".1g"),
    Column(title="backward residual, last tenth", measure="backward_residual", digits=".1g"),
    Column(title="spectral radius", measure="spectral_radius", digits=".2g"),
)

FIGURE34 = compare(
    name="fig3-4",
    claim="pre-LN and missing weight normalization make a DEQ-Transformer unstable; regularized ones are stable",
    data=DATA,
    duration={"cpu": "50 min", "paper": "weeks on 4 GPUs"},
    entries=entries_of(*_NAMES),
    figures=draw,
    judge=judge,
    columns=_COLUMNS,
)
