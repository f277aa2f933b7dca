"""Figure 3: small changes of the architecture make a DEQ-Transformer unstable, unless it is regularized."""

from .comparison import Comparison
from .language import NO_WEIGHT_NORM, POST, POST_JR, PRE, PRE_JR, language_models
from .result import Claim
from .tables import BACKWARD_RESIDUAL, EVALS, PERPLEXITY, RADIUS, RESIDUAL, Column
from .variant import VariantSummary

_RESIDUAL = Column(title="residual", measure="train_residual", digits=".2g")


def _is_worse(row: VariantSummary, than: VariantSummary) -> bool:
    return row.mean("diverged") > than.mean("diverged") or (
        row.mean("train_residual") > 2 * than.mean("train_residual")
    )


def _is_steadier(row: VariantSummary, than: VariantSummary) -> bool:
    names = ("train_residual", "train_evals")
    return row.mean("diverged") == 0 and all(row.mean(name) < than.mean(name) for name in names)


FIGURE34 = Comparison(
    name="fig3-4",
    title="Figure 3: brittleness",
    statement="pre-LN and missing weight normalization make a DEQ-Transformer unstable; regularized ones are stable",
    variants=language_models(POST, PRE, NO_WEIGHT_NORM, POST_JR, PRE_JR),
    figures=("forward_residual", "backward_residual", "forward_evaluations", "perplexity"),
    claims=(
        Claim(
            "pre-LN makes an unregularized model diverge (or end with at least twice the residual of post-LN)",
            section="3.3, Figure 3",
            threshold="stated before",
            holds=lambda s: _is_worse(s[PRE], s[POST]),
            evidence=lambda s: _RESIDUAL.against(s[PRE], s[POST]),
        ),
        Claim(
            "without weight normalization, solves of post-LN collapse (it diverges, or ends with twice the residual)",
            section="3.3, Figure 3",
            threshold="stated before",
            holds=lambda s: _is_worse(s[NO_WEIGHT_NORM], s[POST]),
            evidence=lambda s: _RESIDUAL.against(s[NO_WEIGHT_NORM], s[POST]),
        ),
        Claim(
            "regularized, both post-LN and pre-LN end with a smaller residual, with fewer evaluations",
            section="5.2, Figure 3",
            holds=lambda s: _is_steadier(s[POST_JR], s[POST]) and _is_steadier(s[PRE_JR], s[PRE]),
            evidence=lambda s: (
                f"post-LN {_RESIDUAL.against(s[POST_JR], s[POST])}, pre-LN {_RESIDUAL.against(s[PRE_JR], s[PRE])}"
            ),
        ),
    ),
    columns=(PERPLEXITY, EVALS, RESIDUAL, BACKWARD_RESIDUAL, RADIUS),
)
