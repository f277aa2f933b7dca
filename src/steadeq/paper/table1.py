"""Tables 1 and 4: language models, their perplexity, evaluations, time and memory."""

from dataclasses import replace

from .comparison import Comparison
from .language import (
    AWD_QRNN,
    MEGATRON,
    MEMORY_CORE,
    POST,
    POST_JR,
    PRE,
    PRE_FASTER,
    PRE_JR,
    SMALL_BUDGET,
    STOPPED,
    TIED,
    TRANSFORMER_XL,
    TRANSFORMER_XL_SAME_BLOCK,
    TWENTY,
    TWICE_AS_LONG,
    as_trained_best,
    choose_settings,
    quoted,
)
from .result import Claim
from .tables import PERPLEXITY, Column
from .variant import Summary, VariantSummary

BUDGETS = (2, 4, 6, 8, 12, 30)
"""Budgets at which every DEQ is evaluated on the test text."""
UNSTABLE = 1e-2
"""A residual in training above which a model counts as unstable: ten times the tolerance."""


def add_times(summary: Summary) -> Summary:
    """Give every variant the time of its steps relative to those of Transformer-XL, if that is there."""
    if TRANSFORMER_XL not in summary:
        return summary
    factor = 1 / summary[TRANSFORMER_XL].mean("seconds_per_step")
    return summary.map(lambda row: row.adding(time=row.scaled("seconds_per_step", factor)))


def _is_unstable(row: VariantSummary) -> bool:
    return row.mean("diverged") > 0 or row.mean("train_residual") > UNSTABLE


def _has_lost(row: VariantSummary, than: VariantSummary) -> bool:
    return row.mean("score") >= 1.05 * than.mean("score")


def _speedup(summary: Summary) -> float:
    return summary[POST].mean("seconds_per_step") / summary[POST_JR].mean("seconds_per_step")


def _perplexities(*rows: VariantSummary) -> str:
    return " against ".join(f"{row.show('score', digits='.1f')} at {row.max_evals}" for row in rows)


def _residual(row: VariantSummary) -> str:
    evals = row.show("train_evals", digits=".1f")
    return f"residual {row.show('train_residual', digits='.2g')} after {evals} evaluations"


def _beside(claim: Claim[Summary], variant: str) -> Claim[Summary]:
    """Return a claim that is left out at scales without a variant."""
    return replace(claim, applies=lambda s: s.plans(variant))


_CLAIMS = (
    Claim[Summary](
        f"without regularization pre-LN diverges in training (or ends with a residual above {UNSTABLE:g}), where "
        "post-LN trains",
        id="pre-ln-diverges",
        section="5.2, Table 1",
        threshold="set after a look at numbers",
        subjects=(PRE,),
        holds=lambda s: _is_unstable(s[PRE]) and not _is_unstable(s[POST]),
        evidence=lambda s: f"{_residual(s[PRE])} against {_residual(s[POST])}",
    ),
    Claim[Summary](
        "with regularization pre-LN trains, with fewer evaluations",
        id="pre-ln-trains",
        section="5.2, Table 1",
        threshold="stated before",
        subjects=(PRE, PRE_JR),
        holds=lambda s: not _is_unstable(s[PRE_JR]) and s[PRE_JR].mean("train_evals") < s[PRE].mean("train_evals"),
        evidence=lambda s: f"{_residual(s[PRE_JR])}; perplexity {_perplexities(s[PRE_JR], s[PRE])}",
    ),
    Claim[Summary](
        "regularized post-LN with the small budget stays competitive (within 5% of unregularized with the large one)",
        id="small-budget",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: s[POST_JR].mean("score") <= 1.05 * s[POST].mean("score"),
        evidence=lambda s: _perplexities(s[POST_JR], s[POST]),
    ),
    Claim[Summary](
        "stopping the solves of the unregularized model early hurts (at least 5% of perplexity)",
        id="stopped-early",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: _has_lost(s[STOPPED], s[POST]),
        evidence=lambda s: _perplexities(s[STOPPED], s[POST]),
    ),
    Claim[Summary](
        "a training step of the regularized model takes about half the time (1.8 times as fast, or more)",
        id="faster",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: _speedup(s) >= 1.8,
        evidence=lambda s: (
            f"{_speedup(s):.2f} times as fast; relative to Transformer-XL {s[POST_JR].show('time', digits='.2f')} "
            f"against {s[POST].show('time', digits='.2f')}"
        ),
    ),
    Claim[Summary](
        "without regularization, a training step takes about three times as long as with Transformer-XL (2 to 4.5)",
        section="3.2, 5.2, Table 1",
        threshold="set after a look at numbers",
        holds=lambda s: 2 <= s[POST].mean("time") <= 4.5,
        evidence=lambda s: f"{s[POST].show('time', digits='.2f')} times",
    ),
)
_OTHER_NETWORKS = (
    PERPLEXITY.claim(
        "regularized post-LN stays close to a Transformer-XL of its size (within 5% of perplexity, or better)",
        POST_JR,
        TRANSFORMER_XL,
        lambda a, b: a <= 1.05 * b,
        id="transformer-xl",
        section="5.2, Table 1",
        threshold="set after a look at numbers",
    ),
    _beside(
        PERPLEXITY.claim(
            "it is ahead of a Transformer-XL with as many parameters without its word vectors",
            POST_JR,
            TRANSFORMER_XL_SAME_BLOCK,
            lambda a, b: a < b,
            section="5.2, Table 1",
            source="own",
        ),
        TRANSFORMER_XL_SAME_BLOCK,
    ),
    _beside(
        PERPLEXITY.claim(
            "it is ahead of its own cell applied 12 times and trained by plain backpropagation",
            POST_JR,
            TIED,
            lambda a, b: a < b,
            id="own-cell",
            section="5.2, Table 1",
            source="own",
        ),
        TIED,
    ),
)
_FURTHER_CLAIMS = (
    Claim[Summary](
        "training the unregularized model with the small budget diverges (or costs at least 5% of perplexity)",
        section="5.2",
        threshold="stated before",
        subjects=(SMALL_BUDGET,),
        holds=lambda s: s[SMALL_BUDGET].mean("diverged") > 0 or _has_lost(s[SMALL_BUDGET], s[POST]),
        evidence=lambda s: f"{_perplexities(s[SMALL_BUDGET], s[POST])}; {_residual(s[SMALL_BUDGET])}",
    ),
    Claim[Summary](
        "training it with 20 evaluations, instead of 30, costs perplexity",
        section="5.2",
        subjects=(TWENTY,),
        holds=lambda s: s[TWENTY].mean("diverged") > 0 or s[TWENTY].mean("score") > s[POST].mean("score"),
        evidence=lambda s: _perplexities(s[TWENTY], s[POST]),
    ),
    Claim[Summary](
        "trained on segments that are twice as long, the regularized model gets a better perplexity",
        section="appendix, Table 1 in full",
        holds=lambda s: s[TWICE_AS_LONG].mean("score") < s[POST_JR].mean("score"),
        evidence=lambda s: _perplexities(s[TWICE_AS_LONG], s[POST_JR]),
    ),
)
TIME = Column(title="time of a step", measure="time", digits=".2f")
"""Relative to Transformer-XL."""
_PERPLEXITY = replace(PERPLEXITY, beside_paper="perplexity in the paper")

TABLE1 = Comparison(
    name="table1",
    title="Table 1: language models",
    statement="regularized DEQ-Transformers stay competitive with 12 evaluations instead of 30, and pre-LN ones train",
    variants=as_trained_best(
        *(TRANSFORMER_XL, TRANSFORMER_XL_SAME_BLOCK, TIED),
        *(PRE, POST, STOPPED, PRE_JR, POST_JR, PRE_FASTER),
    ),
    figures=("perplexity", "perplexity_by_evaluations", "perplexity_by_time"),
    claims=(*_CLAIMS, *_OTHER_NETWORKS),
    columns=(
        _PERPLEXITY,
        replace(TIME, beside_paper="time in the paper"),
    ),
    nfe_beside_paper=True,
    quoted=quoted(AWD_QRNN, MEMORY_CORE),
    budgets=BUDGETS,
    extend=lambda summary: choose_settings(add_times(summary)),
)
TABLE4 = replace(
    TABLE1,
    name="table4",
    title="Table 4: language models, with memory",
    statement="as Table 1, with evaluations and memory in training, fewer evaluations, and longer segments",
    variants=as_trained_best(
        *(TRANSFORMER_XL, PRE, POST, STOPPED, TWENTY, SMALL_BUDGET, PRE_JR, POST_JR, TWICE_AS_LONG)
    ),
    # Those of Table 1 are judged there.
    claims=_FURTHER_CLAIMS,
    columns=(
        _PERPLEXITY,
        Column(title="evals in training", measure="train_evals", digits=".1f"),
        Column(title="peak memory, MB", measure="memory_mb", digits=".0f", beside_paper="memory in the paper"),
    ),
    nfe_beside_paper=False,
    quoted=quoted(TWENTY, TWICE_AS_LONG, AWD_QRNN, MEMORY_CORE, MEGATRON),
)
