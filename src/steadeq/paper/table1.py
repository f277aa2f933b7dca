"""Tables 1 and 4: language models, their perplexity, evaluations, time and memory."""

from dataclasses import replace

from .comparison import Comparison
from .language import (
    ANDERSON,
    ANDERSON_JR,
    AWD_QRNN,
    MEGATRON,
    MEMORY_CORE,
    POST,
    POST_JR,
    POST_SLOWER,
    PRE,
    PRE_JR,
    SMALL_BUDGET,
    STOPPED,
    TIED,
    TRANSFORMER_XL,
    TRANSFORMER_XL_SAME_BLOCK,
    TWENTY,
    TWICE_AS_LONG,
    language_models,
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


_SOLVERS = ((ANDERSON, POST), (ANDERSON_JR, POST_JR))
"""Variants that differ in their solvers only."""
_CLAIMS = (
    Claim[Summary](
        f"without regularization pre-LN diverges in training (or ends with a residual above {UNSTABLE:g})",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: _is_unstable(s[PRE]),
        evidence=lambda s: _residual(s[PRE]),
    ),
    Claim[Summary](
        "with regularization pre-LN trains, with fewer evaluations",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: not _is_unstable(s[PRE_JR]) and s[PRE_JR].mean("train_evals") < s[PRE].mean("train_evals"),
        evidence=lambda s: f"{_residual(s[PRE_JR])}; perplexity {_perplexities(s[PRE_JR], s[PRE])}",
    ),
    Claim[Summary](
        "regularized post-LN with the small budget stays competitive (within 5% of unregularized with the large one)",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: s[POST_JR].mean("score") <= 1.05 * s[POST].mean("score"),
        evidence=lambda s: _perplexities(s[POST_JR], s[POST]),
    ),
    Claim[Summary](
        "stopping the solves of the unregularized model early hurts (at least 5% of perplexity)",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: _has_lost(s[STOPPED], s[POST]),
        evidence=lambda s: _perplexities(s[STOPPED], s[POST]),
    ),
    Claim[Summary](
        "a training step of the regularized model takes about half the time (1.8 times as fast, or more)",
        section="5.2, Table 1",
        threshold="stated before",
        holds=lambda s: _speedup(s) >= 1.8,
        evidence=lambda s: (
            f"{_speedup(s):.2f} times as fast; relative to Transformer-XL {s[POST_JR].show('time', digits='.2f')} "
            f"against {s[POST].show('time', digits='.2f')}"
        ),
    ),
    Claim[Summary](
        "without regularization, a training step takes about three times as long as that of Transformer-XL (2 to 4.5)",
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
        section="5.2, Table 1",
        threshold="set after a look at numbers",
    ),
    _beside(
        PERPLEXITY.claim(
            "it is ahead of a Transformer-XL that is as large beside its words",
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
            section="5.2, Table 1",
            source="own",
        ),
        TIED,
    ),
    _beside(
        Claim[Summary](
            "regularized post-LN is within 5% of an unregularized one that is trained with half the learning rate",
            section="5.2, Table 1",
            source="own",
            threshold="stated before",
            holds=lambda s: s[POST_JR].mean("score") <= 1.05 * s[POST_SLOWER].mean("score"),
            evidence=lambda s: _perplexities(s[POST_JR], s[POST_SLOWER]),
        ),
        POST_SLOWER,
    ),
    _beside(
        Claim[Summary](
            "our solvers in the place of Broyden's method change nothing in quality (within 2% of perplexity)",
            section="3.4",
            source="own",
            threshold="stated before",
            holds=lambda s: all(abs(s[a].mean("score") / s[b].mean("score") - 1) <= 0.02 for a, b in _SOLVERS),
            evidence=lambda s: "; ".join(_perplexities(s[a], s[b]) for a, b in _SOLVERS),
        ),
        ANDERSON,
    ),
)
_FURTHER_CLAIMS = (
    Claim[Summary](
        "training the unregularized model with the small budget diverges (or costs at least 5% of perplexity)",
        section="5.2",
        threshold="stated before",
        holds=lambda s: s[SMALL_BUDGET].mean("diverged") > 0 or _has_lost(s[SMALL_BUDGET], s[POST]),
        evidence=lambda s: f"{_perplexities(s[SMALL_BUDGET], s[POST])}; {_residual(s[SMALL_BUDGET])}",
    ),
    Claim[Summary](
        "training it with 20 evaluations, instead of 30, costs perplexity",
        section="5.2",
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
"""Relative to that of Transformer-XL."""
_PERPLEXITY = replace(PERPLEXITY, beside_paper="perplexity in the paper")

TABLE1 = Comparison(
    name="table1",
    title="Table 1: language models",
    statement="regularized DEQ-Transformers stay competitive with 12 evaluations instead of 30, and pre-LN ones train",
    variants=language_models(
        *(TRANSFORMER_XL, TRANSFORMER_XL_SAME_BLOCK, TIED),
        *(PRE, POST, STOPPED, POST_SLOWER, PRE_JR, POST_JR, ANDERSON, ANDERSON_JR),
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
    extend=add_times,
)
TABLE4 = replace(
    TABLE1,
    name="table4",
    title="Table 4: language models, with memory",
    statement="as Table 1, with evaluations and memory in training, fewer evaluations, and longer segments",
    variants=language_models(
        *(TRANSFORMER_XL, PRE, POST, STOPPED, POST_SLOWER, TWENTY, SMALL_BUDGET, PRE_JR, POST_JR, TWICE_AS_LONG)
    ),
    # Those of Table 1 are judged there.
    claims=_FURTHER_CLAIMS,
    columns=(
        _PERPLEXITY,
        Column(title="evaluations in training", measure="train_evals", digits=".1f"),
        Column(title="peak memory, MB", measure="memory_mb", digits=".0f", beside_paper="memory in the paper"),
    ),
    nfe_beside_paper=False,
    quoted=quoted(TWENTY, TWICE_AS_LONG, AWD_QRNN, MEMORY_CORE, MEGATRON),
)
