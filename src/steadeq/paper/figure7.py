"""Figure 7: the spectral radius over training, with and without regularization."""

from .comparison import Comparison
from .language import POST, POST_JR, SMALL_BUDGET, language_models
from .result import Claim
from .tables import NORM, RESIDUAL, Column

_RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2f")


FIGURE7 = Comparison(
    name="fig7",
    title="Figure 7: spectral radius",
    statement="regularization constrains the spectral radius; training with few evaluations lets it explode",
    variants=language_models(POST, SMALL_BUDGET, POST_JR),
    figures=("spectral_radius_by_two_methods",),
    claims=(
        Claim(
            "the regularized model has the smallest spectral radius",
            holds=lambda s: min(s, key=lambda name: s[name].mean("spectral_radius")) == POST_JR,
            evidence=lambda s: (
                f"{_RADIUS.against(s[POST_JR], s[POST])} with the large budget and {_RADIUS.show(s[SMALL_BUDGET])} "
                "with the small one"
            ),
        ),
        _RADIUS.claim(
            "without regularization, training with the small budget ends with a larger radius than with the large one",
            SMALL_BUDGET,
            POST,
            lambda a, b: a > b,
        ),
        _RADIUS.claim(
            "without regularization the radius is above 1, and with it below", POST_JR, POST, lambda a, b: a < 1 < b
        ),
    ),
    columns=(
        _RADIUS,
        Column(title="by the paper's power method", measure="spectral_radius_rayleigh", digits=".2f"),
        NORM,
        RESIDUAL,
    ),
)
