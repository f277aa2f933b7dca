"""Softplus instead of ReLU, which earlier DEQs needed, and regularized ones do not (appendix A.4)."""

from dataclasses import replace

from ..lab.config import TrainConfig
from ..models import ConvDEQ
from .comparison import Comparison
from .result import Claim
from .tables import ACCURACY, RADIUS, RESIDUAL, Column
from .variant import SEEDS, Summary, Variant

_PLAIN, _PLAIN_SOFTPLUS = "ReLU, no penalty", "softplus, no penalty"
_JR, _JR_SOFTPLUS = "ReLU + JR", "softplus + JR"
_RESIDUAL = Column(title="residual", measure="train_residual", digits=".2g")


def _softplus(config: TrainConfig) -> TrainConfig:
    assert isinstance(config.model, ConvDEQ.Config)
    return replace(config, model=replace(config.model, activation="softplus"))


_VARIANTS = (
    Variant(_PLAIN, "digits", 18, 1.2, seeds=SEEDS),
    Variant(_PLAIN_SOFTPLUS, "digits", 18, 1.4, seeds=SEEDS, change=_softplus),
    Variant(_JR, "digits-jr", 6, 0.6, seeds=SEEDS),
    Variant(_JR_SOFTPLUS, "digits-jr", 6, 0.8, seeds=SEEDS, change=_softplus),
)

SOFTPLUS = Comparison(
    name="softplus",
    title="Softplus instead of ReLU (appendix A.4)",
    statement="with the penalty, a DEQ with ReLU needs no softplus to be stable",
    scales=("cpu",),
    variants=lambda scale: _VARIANTS,
    figures=("forward_residual",),
    claims=(
        Claim[Summary](
            "with the penalty softplus is not necessary: ReLU is as accurate (within 1 point) and ends with at most "
            "twice the residual",
            section="appendix A.4",
            threshold="stated before",
            subjects=(_JR,),
            holds=lambda s: (
                s[_JR].mean("score") >= s[_JR_SOFTPLUS].mean("score") - 0.01
                and s[_JR].mean("train_residual") <= 2 * s[_JR_SOFTPLUS].mean("train_residual")
            ),
            evidence=lambda s: (
                f"{ACCURACY.against(s[_JR], s[_JR_SOFTPLUS])}%, residual {_RESIDUAL.against(s[_JR], s[_JR_SOFTPLUS])}"
            ),
        ),
        _RESIDUAL.claim(
            "without the penalty, softplus helps: it ends with the smaller residual",
            _PLAIN_SOFTPLUS,
            _PLAIN,
            lambda a, b: a < b,
            section="appendix A.4",
        ),
    ),
    columns=(ACCURACY, RESIDUAL, RADIUS),
)
