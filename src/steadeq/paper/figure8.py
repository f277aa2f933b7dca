"""Figure 8: weight decay does not stabilize a DEQ-Transformer."""

from __future__ import annotations

from ..lab.report.curves import evals_figure, residual_figure, score_figure
from .comparison import Comparison
from .language import POST, POST_JR, WEIGHT_DECAY, language_models
from .result import Claim
from .tables import Column
from .variant import Summary


def _evals(summary: Summary, name: str) -> str:
    return summary[name].show("train_evals", digits=".1f")


FIGURE8 = Comparison(
    name="fig8",
    title="Figure 8: weight decay",
    statement="weight decay does not stabilize the forward solves",
    variants=language_models(POST, WEIGHT_DECAY, POST_JR),
    figures=lambda groups: {
        "forward_residual": residual_figure(groups),
        "forward_evaluations": evals_figure(groups),
        "perplexity": score_figure(groups),
    },
    claims=(
        Claim(
            "weight decay saves less than a tenth of the evaluations, and the penalty more than a third",
            holds=lambda s: (
                s[WEIGHT_DECAY].mean("train_evals") > 0.9 * s[POST].mean("train_evals")
                and s[POST_JR].mean("train_evals") < s[POST].mean("train_evals") * 2 / 3
            ),
            evidence=lambda s: (
                f"{_evals(s, WEIGHT_DECAY)} with weight decay, {_evals(s, POST_JR)} with the penalty, "
                f"{_evals(s, POST)} with neither"
            ),
        ),
    ),
    columns=(
        Column(title="perplexity", measure="score", digits=".1f"),
        Column(title="evaluations, last tenth", measure="train_evals", digits=".1f"),
        Column(title="residual, last tenth", measure="train_residual", digits=".1g"),
        Column(title="spectral radius", measure="spectral_radius", digits=".2g"),
    ),
)
