"""Figure 1: solves get worse as a DEQ trains, together with the norm of its Jacobian, and cost time."""

from dataclasses import replace

from .comparison import Comparison
from .language import POST, POST_JR, as_trained_best, choose_settings
from .result import Claim, Threshold
from .tables import BACKWARD_RESIDUAL, EVALS, NORM, RESIDUAL, Column
from .variant import Summary, VariantSummary
from .vision import MDEQ, MDEQ_JR, classifiers

_NORM = Column(title="‖J‖²/d", measure="jacobian_norm")
_FORWARD = Column(title="residual", measure="train_residual", digits=".2g")
_BACKWARD = Column(title="backward residual", measure="backward_residual", digits=".2g")
_FEW_WORDS, _FEW_IMAGES = 12, 6
"""Evaluations of the regularized models, after which residuals are compared."""


def at_evals(budget: int) -> Column:
    """Return the column of the residual on test data after a number of evaluations, for any model."""
    return Column(title=f"residual after {budget} evaluations", measure=f"residual_at_{budget}", digits=".2g")


_EARLY_RESIDUAL = replace(RESIDUAL, title="residual, first tenth", measure="early_residual")


def early(column: Column) -> Column:
    """Return the column of the same measure in the first tenth of training."""
    return replace(column, measure=f"early_{column.measure.removeprefix('train_')}")


def _growth(row: VariantSummary) -> str:
    return f"{row.show('early_evals', digits='.1f')} to {row.show('train_evals', digits='.1f')}"


def _has_doubled(row: VariantSummary) -> bool:
    return row.mean("train_evals") >= 2 * row.mean("early_evals")


def _smaller(
    text: str, first: str, second: str, *columns: Column, section: str, id: str = "", threshold: Threshold = "none"
) -> Claim[Summary]:
    """Return a claim that a variant ends with smaller values than another one in all of some columns."""
    return Claim(
        text,
        id=id,
        section=section,
        threshold=threshold,
        holds=lambda s: all(s[first].mean(c.measure) < s[second].mean(c.measure) for c in columns),
        evidence=lambda s: ", ".join(f"{c.title} {c.against(s[first], s[second])}" for c in columns),
    )


def _grows(text: str, variant: str, *columns: Column, section: str, id: str = "") -> Claim[Summary]:
    """Return a claim that columns of a variant grow in training."""
    return Claim(
        text,
        id=id,
        section=section,
        holds=lambda s: all(s[variant].mean(c.measure) > s[variant].mean(early(c).measure) for c in columns),
        evidence=lambda s: ", ".join(f"{c.title} {early(c).show(s[variant])} to {c.show(s[variant])}" for c in columns),
    )


FIGURE1 = Comparison(
    name="fig1",
    title="Figure 1: instability",
    statement="solves get worse as an unregularized DEQ trains, as the norm of its Jacobian grows",
    variants=as_trained_best(POST, POST_JR),
    budgets=(_FEW_WORDS,),
    extend=choose_settings,
    figures=(
        *("forward_residual", "backward_residual", "forward_evaluations"),
        *("residual_by_jacobian_norm", "perplexity_by_time"),
    ),
    claims=(
        Claim(
            "without regularization, solves need more and more evaluations in training (at least twice as many at its "
            "end as at its beginning)",
            id="solves-get-harder",
            section="3.1",
            threshold="stated before",
            holds=lambda s: _has_doubled(s[POST]),
            evidence=lambda s: _growth(s[POST]),
        ),
        Claim(
            "at the end of training, a DEQ can take more than 3 times as many evaluations as at its beginning",
            section="3.1",
            holds=lambda s: s[POST].mean("train_evals") > 3 * s[POST].mean("early_evals"),
            evidence=lambda s: _growth(s[POST]),
        ),
        Claim(
            "with regularization, they stay stable (less than twice as many)",
            id="solves-stay-stable",
            section="5.2, Figure 3",
            threshold="stated before",
            holds=lambda s: not _has_doubled(s[POST_JR]),
            evidence=lambda s: _growth(s[POST_JR]),
        ),
        _smaller(
            f"the regularized model ends with the smaller Jacobian norm, and with the smaller residual after as many "
            f"evaluations ({_FEW_WORDS}, on test data)",
            POST_JR,
            POST,
            _NORM,
            at_evals(_FEW_WORDS),
            section="5.2, B.3",
            threshold="set after a look at numbers",
        ),
    ),
    columns=(
        replace(EVALS, title="evaluations, first tenth", measure="early_evals"),
        replace(EVALS, title="last tenth"),
        _EARLY_RESIDUAL,
        replace(RESIDUAL, title="last tenth"),
        NORM,
    ),
)
FIGURE1_CIFAR10 = Comparison(
    name="fig1-cifar10",
    title="Figures 1a and 1b: instability on CIFAR-10",
    statement="residuals of both solves get worse as an unregularized MDEQ trains, as the norm of its Jacobian grows",
    variants=classifiers(MDEQ, MDEQ_JR),
    budgets=(_FEW_IMAGES,),
    figures=(
        *("forward_residual", "backward_residual", "forward_evaluations", "backward_evaluations"),
        *("jacobian_norm", "residual_by_jacobian_norm"),
    ),
    claims=(
        _grows(
            "without regularization, the residuals of forward and backward solves get worse in training",
            MDEQ,
            _FORWARD,
            _BACKWARD,
            id="residuals-get-worse",
            section="3.1, Figure 1a",
        ),
        _grows("the norm of the Jacobian at the equilibrium grows in training", MDEQ, _NORM, section="3.1, Figure 1b"),
        _smaller(
            f"with regularization, a solve comes closer to the fixed point in as many evaluations ({_FEW_IMAGES}, on "
            "test data)",
            MDEQ_JR,
            MDEQ,
            at_evals(_FEW_IMAGES),
            id="solves-come-closer",
            section="5.3, Figure 1a",
            threshold="set after a look at numbers",
        ),
        _smaller(
            "with regularization, the norm of the Jacobian is smaller",
            MDEQ_JR,
            MDEQ,
            _NORM,
            id="smaller-norm",
            section="5.3, Figure 1b",
        ),
    ),
    columns=(
        _EARLY_RESIDUAL,
        replace(RESIDUAL, title="last tenth"),
        replace(BACKWARD_RESIDUAL, title="backward, first tenth", measure="early_backward_residual"),
        replace(BACKWARD_RESIDUAL, title="last tenth"),
        NORM,
    ),
)
