"""The language models that several tables and figures show, at each scale, with what the paper reports of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ..lab.config import TrainConfig
from ..lab.data.text import AbstractTextConfig
from ..lab.recipes.registry import Scale
from ..models import DEQTransformerLM
from .variant import SEEDS, Variant, choose, with_weight_decay

POST, PRE = "DEQ (Post-LN)", "DEQ (Pre-LN)"
POST_JR, PRE_JR = "DEQ (Post-LN) + JR", "DEQ (Pre-LN) + JR"
POST_SLOWER = "DEQ (Post-LN), half the learning rate"
STOPPED, SMALL_BUDGET = "DEQ (Post-LN), early stopped", "DEQ (Post-LN), trained with fewer evaluations"
NO_WEIGHT_NORM, WEIGHT_DECAY = "DEQ (Post-LN), no weight norm", "DEQ (Post-LN), weight decay"
TWENTY, TWICE_AS_LONG = "DEQ (Post-LN), trained with 20 evaluations", "DEQ (Post-LN) + JR, segments twice as long"
TRANSFORMER_XL, TIED = "Transformer-XL", "Transformer, one layer 12 times"
TRANSFORMER_XL_SAME_BLOCK = "Transformer-XL, as large as the DEQ beside its words"
ANDERSON, ANDERSON_JR = "DEQ (Post-LN), our solvers", "DEQ (Post-LN) + JR, our solvers"
LINEAR, CLOSED_LOOP = "DEQ (Post-LN) + JR, linear schedule", "DEQ (Post-LN) + JR, closed loop"
CLOSED_LOOP_EVALS = "DEQ (Post-LN) + JR, closed loop on evaluations"
SPECTRAL, RESIDUAL = "DEQ (Post-LN) + spectral radius, closed loop", "DEQ (Post-LN) + residual, closed loop"
AWD_QRNN, MEMORY_CORE = "AWD-QRNN (Bradbury et al., 2016)", "Relational Memory Core (Santoro et al., 2018)"
MEGATRON = "Megatron-LM (Shoeybi et al., 2019)"


def with_evaluations(max_evals: int) -> Callable[[TrainConfig], TrainConfig]:
    """Return a change of a config that trains with other budgets, forward and backward."""
    return lambda config: config.with_max_evals(max_evals)


def _with_half_the_learning_rate(config: TrainConfig) -> TrainConfig:
    return replace(config, optimizer=replace(config.optimizer, learning_rate=config.optimizer.learning_rate / 2))


def _without_weight_norm(config: TrainConfig) -> TrainConfig:
    assert isinstance(config.model, DEQTransformerLM.Config)
    return replace(config, model=replace(config.model, weight_norm=False))


def _twice_as_long(config: TrainConfig) -> TrainConfig:
    assert isinstance(config.data, AbstractTextConfig)
    return replace(config, data=replace(config.data, length=2 * config.data.length))


def _paper(perplexity: str, max_evals: str, time: str, memory: str) -> Mapping[str, str]:
    return {"score": perplexity, "max_evals": max_evals, "time": time, "memory_mb": memory}


# Tables 1 and 4 of the paper.
_PAPER: Mapping[str, Mapping[str, str]] = {
    TRANSFORMER_XL: _paper("24.1", "-", "1x", "9.0 GB"),
    PRE: _paper("diverged", "30", "3.1x", "-"),
    POST: _paper("24.0", "30", "3.1x", "3.9 GB"),
    STOPPED: _paper("29.2", "12", "3.1x", "3.9 GB"),
    TWENTY: _paper("26.0", "20", "2.2x", "3.6 GB"),
    SMALL_BUDGET: _paper("diverged", "15", "-", "3.6 GB"),
    PRE_JR: _paper("24.5", "14", "1.6x", "4.8 GB"),
    POST_JR: _paper("24.9", "12", "1.5x", "4.8 GB"),
    TWICE_AS_LONG: _paper("23.8", "13", "2.2x", "6.5 GB"),
    AWD_QRNN: _paper("33.0", "-", "-", "7.1 GB"),
    MEMORY_CORE: _paper("31.6", "-", "-", "-"),
    MEGATRON: _paper("10.8", "-", "-", "-"),
}
_VARIANTS: Mapping[Scale, tuple[Variant, ...]] = {
    "cpu": (
        Variant(TRANSFORMER_XL, "wikitext2-transformer-xl-cpu", 0, 3, seeds=(0, 1)),
        Variant(PRE, "wikitext2-deq-pre-cpu", 30, 11, seeds=(0, 1)),
        Variant(POST, "wikitext2-deq-post-cpu", 30, 12, seeds=SEEDS),
        Variant(STOPPED, "wikitext2-deq-post-cpu", 12, 12, seeds=SEEDS),
        Variant(TWENTY, "wikitext2-deq-post-cpu", 20, 10, change=with_evaluations(20)),
        Variant(SMALL_BUDGET, "wikitext2-deq-post-small-budget-cpu", 12, 8),
        Variant(PRE_JR, "wikitext2-deq-pre-jr-cpu", 12, 8),
        Variant(POST_JR, "wikitext2-deq-post-jr-cpu", 12, 7, seeds=SEEDS),
        Variant(TWICE_AS_LONG, "wikitext2-deq-post-jr-cpu", 12, 14, change=_twice_as_long),
        Variant(NO_WEIGHT_NORM, "wikitext2-deq-post-no-weight-norm-cpu", 30, 12),
        Variant(WEIGHT_DECAY, "wikitext2-deq-post-weight-decay-cpu", 30, 12),
    ),
    "day": (
        Variant(TRANSFORMER_XL, "wikitext2-transformer-xl-day", 0, 10, seeds=(0, 1)),
        Variant(TRANSFORMER_XL_SAME_BLOCK, "wikitext2-transformer-xl-same-block-day", 0, 10),
        Variant(TIED, "wikitext2-tied-transformer-day", 0, 26),
        Variant(PRE, "wikitext2-deq-pre-day", 30, 60),
        Variant(POST, "wikitext2-deq-post-day", 30, 60, seeds=(0, 1)),
        Variant(STOPPED, "wikitext2-deq-post-day", 12, 60, seeds=(0, 1)),
        Variant(POST_SLOWER, "wikitext2-deq-post-day", 30, 45, change=_with_half_the_learning_rate),
        Variant(TWENTY, "wikitext2-deq-post-day", 20, 45, change=with_evaluations(20)),
        Variant(SMALL_BUDGET, "wikitext2-deq-post-small-budget-day", 12, 27),
        Variant(PRE_JR, "wikitext2-deq-pre-jr-day", 12, 28),
        Variant(POST_JR, "wikitext2-deq-post-jr-day", 12, 28, seeds=(0, 1)),
        Variant(TWICE_AS_LONG, "wikitext2-deq-post-jr-day", 12, 56, change=_twice_as_long),
        Variant(ANDERSON, "wikitext2-deq-post-anderson-day", 30, 55),
        Variant(ANDERSON_JR, "wikitext2-deq-post-jr-anderson-day", 12, 25),
        Variant(LINEAR, "wikitext2-deq-post-jr-linear-day", 12, 28),
        Variant(CLOSED_LOOP, "wikitext2-deq-post-jr-closed-loop-day", 12, 28),
        Variant(CLOSED_LOOP_EVALS, "wikitext2-deq-post-jr-closed-loop-evals-day", 12, 45),
        Variant(SPECTRAL, "wikitext2-deq-post-spectral-day", 12, 30),
        Variant(RESIDUAL, "wikitext2-deq-post-residual-day", 12, 27),
        Variant(NO_WEIGHT_NORM, "wikitext2-deq-post-no-weight-norm-day", 30, 62),
        Variant(WEIGHT_DECAY, "wikitext2-deq-post-weight-decay-day", 30, 60),
    ),
    "paper": (
        Variant(TRANSFORMER_XL, "wikitext103-transformer-xl", 0, 10_000),
        Variant(PRE, "wikitext103-deq-pre", 30, 10_000),
        Variant(POST, "wikitext103-deq-post", 30, 10_000),
        Variant(STOPPED, "wikitext103-deq-post", 12, 10_000),
        Variant(TWENTY, "wikitext103-deq-post", 20, 10_000, change=with_evaluations(20)),
        Variant(SMALL_BUDGET, "wikitext103-deq-post", 15, 10_000, change=with_evaluations(15)),
        Variant(PRE_JR, "wikitext103-deq-pre-jr", 14, 10_000),
        Variant(POST_JR, "wikitext103-deq-post-jr", 12, 10_000),
        Variant(TWICE_AS_LONG, "wikitext103-deq-post-jr", 13, 20_000, change=_twice_as_long),
        Variant(NO_WEIGHT_NORM, "wikitext103-deq-post", 30, 10_000, change=_without_weight_norm),
        Variant(WEIGHT_DECAY, "wikitext103-deq-post", 30, 10_000, change=with_weight_decay),
    ),
}
language_models = partial(choose, _VARIANTS, _PAPER)
"""Returns a function that gives variants by their names, at a scale."""


def quoted(*names: str) -> Mapping[str, Mapping[str, str]]:
    """Return what the paper reports of some models, by name."""
    return {name: _PAPER[name] for name in names}
