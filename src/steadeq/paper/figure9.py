"""Figure 9: convergence of the backward solves, and the norm of the Jacobian, over training."""

from .comparison import Comparison
from .language import POST, POST_JR, WEIGHT_DECAY, as_trained_best, choose_settings
from .result import Claim
from .tables import ACCURACY, BACKWARD_RESIDUAL, NORM, Column
from .variant import VariantSummary
from .vision import MDEQ, MDEQ_JR, classifiers
from .vision import WEIGHT_DECAY as MDEQ_WEIGHT_DECAY

_PRODUCTS = Column(title="products, last tenth", measure="backward_evals", digits=".1f")
_RESIDUAL = Column(title="backward residual", measure="backward_residual", digits=".2g")
_FLUCTUATION = Column(title="its fluctuation", measure="backward_fluctuation", digits=".1g")


def _norms(row: VariantSummary) -> str:
    return f"{row.mean('early_jacobian_norm'):.3g} to {row.mean('jacobian_norm'):.3g}"


def _growth(row: VariantSummary) -> float:
    return row.mean("jacobian_norm") - row.mean("early_jacobian_norm")


FIGURE9 = Comparison(
    name="fig9",
    title="Figure 9: backward solves and the norm of the Jacobian",
    statement="regularization helps backward solves too; the norm of the Jacobian grows nevertheless",
    variants=as_trained_best(POST, WEIGHT_DECAY, POST_JR),
    extend=choose_settings,
    figures=("backward_residual", "backward_evaluations", "jacobian_norm", "residual_by_jacobian_norm"),
    claims=(
        _PRODUCTS.claim(
            "regularization makes backward solves converge sooner",
            POST_JR,
            POST,
            lambda a, b: a < b,
            section="5.2, B.2",
        ),
        Claim(
            "the norm of the Jacobian grows in training, also with weight decay, and even with regularization",
            section="B.3",
            holds=lambda s: all(_growth(s[name]) > 0 for name in (POST, WEIGHT_DECAY, POST_JR)),
            evidence=lambda s: (
                f"{_norms(s[POST])}, with weight decay {_norms(s[WEIGHT_DECAY])}, regularized {_norms(s[POST_JR])}"
            ),
        ),
        Claim(
            "with regularization, it grows more slowly than without, and than with weight decay",
            section="B.3",
            holds=lambda s: _growth(s[POST_JR]) < min(_growth(s[POST]), _growth(s[WEIGHT_DECAY])),
            evidence=lambda s: (
                f"by {_growth(s[POST_JR]):.3g}, without by {_growth(s[POST]):.3g}, with weight decay by "
                f"{_growth(s[WEIGHT_DECAY]):.3g}"
            ),
        ),
    ),
    columns=(_PRODUCTS, BACKWARD_RESIDUAL, NORM),
)
FIGURE9_CIFAR10 = Comparison(
    name="fig9-cifar10",
    title="Figure 9a: backward solves on CIFAR-10",
    statement="regularization improves quality and fluctuation of backward solves; weight decay only the fluctuation",
    variants=classifiers(MDEQ, MDEQ_WEIGHT_DECAY, MDEQ_JR),
    figures=("backward_residual", "backward_evaluations", "jacobian_norm"),
    claims=(
        _RESIDUAL.claim(
            "regularization improves the quality of backward solves: they end with a smaller residual",
            MDEQ_JR,
            MDEQ,
            lambda a, b: a < b,
            section="B.2",
        ),
        _FLUCTUATION.claim(
            "regularization improves their fluctuation: from step to step that residual differs less",
            MDEQ_JR,
            MDEQ,
            lambda a, b: a < b,
            section="B.2",
        ),
        _FLUCTUATION.claim(
            "weight decay alleviates the fluctuation too", MDEQ_WEIGHT_DECAY, MDEQ, lambda a, b: a < b, section="B.2"
        ),
        _RESIDUAL.claim(
            "with weight decay, backward solves converge even more poorly than without",
            MDEQ_WEIGHT_DECAY,
            MDEQ,
            lambda a, b: a > b,
            section="B.2",
        ),
    ),
    columns=(_PRODUCTS, _RESIDUAL, _FLUCTUATION, NORM, ACCURACY),
)
