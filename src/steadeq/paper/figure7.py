"""Figure 7: the spectral radius over training, with and without regularization."""

from dataclasses import replace

from ..lab.recipes.registry import Scale
from .comparison import Comparison
from .language import POST, POST_JR, SMALL_BUDGET, as_trained_best, choose_settings, with_evaluations
from .tables import NORM, RESIDUAL, Column
from .variant import Variant

_RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2f")
_FEW = 16
"""Evaluations with which the paper's model explodes in this figure; its Table 4 has 15."""


def variants(scale: Scale) -> list[Variant]:
    """Return what is compared."""
    found = as_trained_best(POST, SMALL_BUDGET, POST_JR)(scale)
    if scale != "paper":
        return found
    exploding = {"max_evals": _FEW, "change": with_evaluations(_FEW)}
    return [replace(variant, **exploding) if variant.name == SMALL_BUDGET else variant for variant in found]


FIGURE7 = Comparison(
    name="fig7",
    title="Figure 7: spectral radius",
    statement="regularization constrains the spectral radius; training with few evaluations lets it explode",
    variants=variants,
    extend=choose_settings,
    figures=("spectral_radius_by_two_methods",),
    claims=(
        _RADIUS.claim(
            "regularization constrains the spectral radius: it ends smaller than without",
            POST_JR,
            POST,
            lambda a, b: a < b,
            id="smaller-radius",
            section="5.4, Figure 7",
            threshold="set after a look at numbers",
        ),
        _RADIUS.claim(
            "without regularization, training with the small budget ends with a larger radius than with the large one",
            SMALL_BUDGET,
            POST,
            lambda a, b: a > b,
            section="5.4, Figure 7",
            subjects=(SMALL_BUDGET,),
        ),
        _RADIUS.claim(
            "without regularization the radius is above 1, and with it below",
            POST_JR,
            POST,
            lambda a, b: a < 1 < b,
            # The paper does not ask for a contraction: section 4.1 says that it would cost too much.
            section="4.1",
            source="own",
        ),
    ),
    columns=(
        _RADIUS,
        Column(title="by the paper's power method", measure="spectral_radius_rayleigh", digits=".2f"),
        NORM,
        RESIDUAL,
    ),
)
