"""Figure 1: solves get worse as a DEQ trains, together with the norm of its Jacobian, and cost time."""

from dataclasses import replace

from .comparison import Comparison
from .language import POST, POST_JR, language_models
from .result import Claim
from .tables import EVALS, NORM, RESIDUAL, Column
from .variant import VariantSummary

_NORM = Column(title="‖J‖²/d", measure="jacobian_norm")
_RESIDUAL = Column(title="residual", measure="train_residual", digits=".2g")


def _growth(row: VariantSummary) -> str:
    return f"{row.show('early_evals', digits='.1f')} to {row.show('train_evals', digits='.1f')}"


def _has_doubled(row: VariantSummary) -> bool:
    return row.mean("train_evals") >= 2 * row.mean("early_evals")


FIGURE1 = Comparison(
    name="fig1",
    title="Figure 1: instability",
    statement="solves get worse as an unregularized DEQ trains, as the norm of its Jacobian grows",
    variants=language_models(POST, POST_JR),
    figures=(
        *("forward_residual", "backward_residual", "forward_evaluations"),
        *("residual_by_jacobian_norm", "perplexity_by_time"),
    ),
    claims=(
        Claim(
            "without regularization, solves take at least twice as many evaluations at the end of training as at its "
            "beginning",
            holds=lambda s: _has_doubled(s[POST]),
            evidence=lambda s: _growth(s[POST]),
        ),
        Claim(
            "with regularization, they do not",
            holds=lambda s: not _has_doubled(s[POST_JR]),
            evidence=lambda s: _growth(s[POST_JR]),
        ),
        Claim(
            "the regularized model ends with the smaller Jacobian norm and the smaller residual",
            holds=lambda s: all(s[POST_JR].mean(c.measure) < s[POST].mean(c.measure) for c in (_NORM, _RESIDUAL)),
            evidence=lambda s: ", ".join(f"{c.title} {c.against(s[POST_JR], s[POST])}" for c in (_NORM, _RESIDUAL)),
        ),
    ),
    columns=(
        replace(EVALS, title="evaluations, first tenth", measure="early_evals"),
        EVALS,
        replace(RESIDUAL, title="residual, first tenth", measure="early_residual"),
        RESIDUAL,
        NORM,
    ),
)
