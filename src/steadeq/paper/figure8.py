"""Figure 8: weight decay does not stabilize a DEQ-Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ..lab.report import RunGroup
from ..lab.report.curves import evals_figure, residual_figure, score_figure
from .result import Verdict
from .variant import find
from .study import Summary, compare
from .table import Column, show
from .wikitext import DATA, POST, POST_JR, WEIGHT_DECAY, entries_of

_NAMES = (POST, WEIGHT_DECAY, POST_JR)


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    return {
        "forward_residual": residual_figure(groups),
        "forward_evaluations": evals_figure(groups),
        "perplexity": score_figure(groups),
    }


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claim against the numbers."""
    plain, decayed, regularized = (find(summary, name) for name in _NAMES)
    evals = {name: show(find(summary, name), "train_evals", digits=".1f") for name in _NAMES}
    return [
        Verdict.of(
            "weight decay saves less than a tenth of the evaluations, and the penalty more than a third",
            decayed["train_evals"] > 0.9 * plain["train_evals"]
            and regularized["train_evals"] < plain["train_evals"] * 2 / 3,
            f"{evals[WEIGHT_DECAY]} with weight decay, {evals[POST_JR]} with the penalty, {evals[POST]} with neither",
        )
    ]


_COLUMNS = (
    Column(title="perplexity", measure="score", digits=".1f"),
    Column(title="evaluations, last tenth", measure="train_evals", digits=".1f"),
    Column(title="residual, last tenth", measure="train_residual", digits=".1g"),
    Column(title="spectral radius", measure="spectral_radius", digits=".2g"),
)

FIGURE8 = compare(
    name="fig8",
    claim="weight decay does not stabilize the forward solves",
    data=DATA,
    duration={"cpu": "35 min", "paper": "weeks on 4 GPUs"},
    entries=entries_of(*_NAMES),
    figures=draw,
    judge=judge,
    columns=_COLUMNS,
)
