"""Attention instead of convolutions, which section 5.5 expects to suit equilibrium models better."""

from .comparison import Comparison
from .result import Claim
from .tables import ACCURACY, EVALS, Column
from .variant import Summary
from .vision import ANDERSON, ANDERSON_JR, VIT, VIT_JR, classifiers

_TEST_RESIDUAL = Column(title="residual on test images", measure="forward_residual", digits=".1g")
_RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2f")


def _loss(summary: Summary, regularized: str, plain: str) -> float:
    return summary[plain].mean("score") - summary[regularized].mean("score")


ATTENTION = Comparison(
    name="attention",
    title="Attention instead of convolutions (section 5.5)",
    statement="cells with global attention need fewer evaluations than convolutions, which see a few pixels at a time",
    scales=("day",),
    # With the same solvers and budgets.
    variants=classifiers(ANDERSON, ANDERSON_JR, VIT, VIT_JR),
    figures=("forward_residual", "forward_evaluations", "accuracy_by_evaluations", "spectral_radius"),
    claims=(
        EVALS.claim(
            "without the penalty, a cell with global attention needs fewer evaluations than one of convolutions",
            VIT,
            ANDERSON,
            lambda a, b: a < b,
            section="5.5",
        ),
        _TEST_RESIDUAL.claim(
            "with the penalty, it comes closer to its fixed point in the same few evaluations",
            VIT_JR,
            ANDERSON_JR,
            lambda a, b: a < b,
            section="5.5",
        ),
        Claim(
            "few evaluations and the penalty cost it less accuracy than they cost convolutions",
            section="5.5",
            source="own",
            holds=lambda s: _loss(s, VIT_JR, VIT) < _loss(s, ANDERSON_JR, ANDERSON),
            evidence=lambda s: (
                f"attention {ACCURACY.against(s[VIT_JR], s[VIT])}, convolutions "
                f"{ACCURACY.against(s[ANDERSON_JR], s[ANDERSON])}"
            ),
        ),
    ),
    columns=(ACCURACY, EVALS, _TEST_RESIDUAL, _RADIUS),
    budgets=(1, 2, 3, 4, 6, 12),
)
