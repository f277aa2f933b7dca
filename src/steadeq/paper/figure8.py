"""Figure 8: weight decay does not stabilize a DEQ-Transformer."""

from .comparison import Comparison
from .language import POST, POST_JR, WEIGHT_DECAY, as_trained_best, choose_settings
from .result import Claim
from .tables import EVALS, PERPLEXITY, RADIUS, RESIDUAL

FIGURE8 = Comparison(
    name="fig8",
    title="Figure 8: weight decay",
    statement="weight decay does not stabilize the forward solves",
    variants=as_trained_best(POST, WEIGHT_DECAY, POST_JR),
    extend=choose_settings,
    figures=("forward_residual", "forward_evaluations", "perplexity"),
    claims=(
        Claim(
            "weight decay does not stabilize the forward solves (it saves less than a tenth of the evaluations, and "
            "the penalty more than a third)",
            section="5.5, Figure 8",
            threshold="stated before",
            subjects=(WEIGHT_DECAY,),
            holds=lambda s: (
                s[WEIGHT_DECAY].mean("train_evals") > 0.9 * s[POST].mean("train_evals")
                and s[POST_JR].mean("train_evals") < s[POST].mean("train_evals") * 2 / 3
            ),
            evidence=lambda s: (
                f"{EVALS.show(s[WEIGHT_DECAY])} with weight decay, {EVALS.show(s[POST_JR])} with the penalty, "
                f"{EVALS.show(s[POST])} with neither"
            ),
        ),
    ),
    columns=(PERPLEXITY, EVALS, RESIDUAL, RADIUS),
)
