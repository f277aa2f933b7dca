"""Figure 9: convergence of the backward solves, and the norm of the Jacobian, over training."""

from .comparison import Comparison
from .language import POST, POST_JR, WEIGHT_DECAY, language_models
from .result import Claim
from .tables import BACKWARD_RESIDUAL, NORM, Column
from .variant import VariantSummary

_PRODUCTS = Column(title="products, last tenth", measure="backward_evals", digits=".1f")


def _norms(row: VariantSummary) -> str:
    return f"{row.mean('early_jacobian_norm'):.3g} to {row.mean('jacobian_norm'):.3g}"


FIGURE9 = Comparison(
    name="fig9",
    title="Figure 9: backward solves and the norm of the Jacobian",
    statement="regularization helps backward solves too; the norm of the Jacobian grows nevertheless",
    variants=language_models(POST, WEIGHT_DECAY, POST_JR),
    figures=("backward_residual", "backward_evaluations", "jacobian_norm", "residual_by_jacobian_norm"),
    claims=(
        _PRODUCTS.claim("regularization makes backward solves converge sooner", POST_JR, POST, lambda a, b: a < b),
        Claim(
            "the norm of the Jacobian grows in training, also with weight decay, and even with regularization",
            holds=lambda s: all(
                s[name].mean("jacobian_norm") > s[name].mean("early_jacobian_norm")
                for name in (POST, WEIGHT_DECAY, POST_JR)
            ),
            evidence=lambda s: (
                f"{_norms(s[POST])}, with weight decay {_norms(s[WEIGHT_DECAY])}, regularized {_norms(s[POST_JR])}"
            ),
        ),
    ),
    columns=(_PRODUCTS, BACKWARD_RESIDUAL, NORM),
)
