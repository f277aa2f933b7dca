"""The language models that several tables and figures show, at each scale, with what the paper reports of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..jacobian import ClosedLoop
from ..lab.config import TrainConfig
from ..lab.data.text import AbstractTextConfig
from ..lab.recipes.registry import Scale
from ..models import DEQTransformerLM
from ..solvers import Broyden
from .judging import has_diverged
from .variant import SEEDS, Summary, Variant, choose, with_weight_decay

POST, PRE = "DEQ (Post-LN)", "DEQ (Pre-LN)"
POST_JR, PRE_JR = "DEQ (Post-LN) + JR", "DEQ (Pre-LN) + JR"
POST_BROYDEN = "DEQ (Post-LN), Broyden's method"
STOPPED_BROYDEN = "DEQ (Post-LN), Broyden's method, early stopped"
POST_FASTER, PRE_FASTER = "DEQ (Post-LN), twice the learning rate", "DEQ (Pre-LN), twice the learning rate"
POST_FASTER_ANDERSON = "DEQ (Post-LN), twice the learning rate, Anderson"
POST_JR_FASTER, PRE_JR_FASTER = (f"{name}, twice the learning rate" for name in (POST_JR, PRE_JR))
SMALL_BUDGET_FASTER = "DEQ (Post-LN), fewer evaluations, twice the learning rate"
CLOSED_LOOP_FASTER = "DEQ (Post-LN) + JR, closed loop, twice the learning rate"
STOPPED, SMALL_BUDGET = "DEQ (Post-LN), early stopped", "DEQ (Post-LN), trained with fewer evaluations"
NO_WEIGHT_NORM, WEIGHT_DECAY = "DEQ (Post-LN), no weight norm", "DEQ (Post-LN), weight decay"
TWENTY, TWICE_AS_LONG = "DEQ (Post-LN), trained with 20 evaluations", "DEQ (Post-LN) + JR, segments twice as long"
TRANSFORMER_XL, TIED = "Transformer-XL", "Transformer, one layer 12 times"
TRANSFORMER_XL_SAME_BLOCK = "Transformer-XL, as large without word vectors"
CLOSED_LOOP = "DEQ (Post-LN) + JR, closed loop"
AWD_QRNN, MEMORY_CORE = "AWD-QRNN (Bradbury et al., 2016)", "Relational Memory Core (Santoro et al., 2018)"
MEGATRON = "Megatron-LM (Shoeybi et al., 2019)"


def with_evaluations(max_evals: int) -> Callable[[TrainConfig], TrainConfig]:
    """Return a change of a config that trains with other budgets, forward and backward."""
    return lambda config: config.with_max_evals(max_evals)


def _with_broyden(config: TrainConfig) -> TrainConfig:
    """Return a config with Broyden's method in both directions, and without dropout."""
    solver = Broyden(max_evals=config.solver.max_evals, tol=config.solver.tol)
    return replace(config, model=replace(config.model, dropout=0.0), solver=solver)


def _at_twice_the_learning_rate(config: TrainConfig) -> TrainConfig:
    return replace(config, optimizer=replace(config.optimizer, learning_rate=2 * config.optimizer.learning_rate))


def _faster(config: TrainConfig) -> TrainConfig:
    return _at_twice_the_learning_rate(_with_broyden(config))


def _faster_closed_loop(config: TrainConfig) -> TrainConfig:
    """Return a config with the bounds that the closed loop had in that run."""
    schedule = ClosedLoop(maximum=100.0, max_share=0.5)
    return replace(_faster(config), regularizer=replace(config.regularizer, schedule=schedule))


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
        Variant(PRE, "wikitext2-deq-pre-day", 30, 48),
        Variant(POST, "wikitext2-deq-post-day", 30, 42, seeds=SEEDS),
        Variant(STOPPED, "wikitext2-deq-post-day", 12, 42, seeds=SEEDS),
        Variant(TWENTY, "wikitext2-deq-post-day", 20, 33, change=with_evaluations(20)),
        Variant(SMALL_BUDGET, "wikitext2-deq-post-small-budget-day", 12, 24),
        Variant(PRE_JR, "wikitext2-deq-pre-jr-day", 12, 24),
        Variant(POST_JR, "wikitext2-deq-post-jr-day", 12, 27, seeds=SEEDS),
        Variant(TWICE_AS_LONG, "wikitext2-deq-post-jr-day", 12, 54, change=_twice_as_long),
        Variant(CLOSED_LOOP, "wikitext2-deq-post-jr-closed-loop-day", 12, 27, seeds=SEEDS),
        Variant(NO_WEIGHT_NORM, "wikitext2-deq-post-no-weight-norm-day", 30, 48),
        Variant(WEIGHT_DECAY, "wikitext2-deq-post-weight-decay-day", 30, 42),
        # The first runs, at the learning rate that was best after 400 steps: without the penalty they collapse.
        Variant(POST_BROYDEN, "wikitext2-deq-post-day", 30, 45, change=_with_broyden, label="broyden"),
        Variant(STOPPED_BROYDEN, "wikitext2-deq-post-day", 12, 45, change=_with_broyden, label="broyden"),
        Variant(POST_FASTER, "wikitext2-deq-post-day", 30, 60, change=_faster, label="faster"),
        Variant(POST_FASTER_ANDERSON, "wikitext2-deq-post-day", 30, 42, change=_at_twice_the_learning_rate),
        Variant(SMALL_BUDGET_FASTER, "wikitext2-deq-post-small-budget-day", 12, 27, change=_faster, label="faster"),
        Variant(PRE_FASTER, "wikitext2-deq-pre-day", 30, 60, change=_faster, label="faster"),
        Variant(POST_JR_FASTER, "wikitext2-deq-post-jr-day", 12, 28, change=_faster, label="faster"),
        Variant(PRE_JR_FASTER, "wikitext2-deq-pre-jr-day", 12, 28, change=_faster, label="faster"),
        Variant(
            CLOSED_LOOP_FASTER,
            "wikitext2-deq-post-jr-closed-loop-day",
            12,
            28,
            change=_faster_closed_loop,
            label="faster",
        ),
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

_TRIED: Mapping[str, Sequence[str]] = {
    POST: (POST_BROYDEN, POST_FASTER, POST_FASTER_ANDERSON),
    POST_JR: (POST_JR_FASTER,),
    PRE_JR: (PRE_JR_FASTER,),
    CLOSED_LOOP: (CLOSED_LOOP_FASTER,),
}
"""Other settings at which models were trained; claims on divergence are about the first setting alone."""
_FOLLOWS = {STOPPED: {POST: STOPPED, POST_BROYDEN: STOPPED_BROYDEN}}
"""Variants that are runs of another one at another budget, and which they are for each of its settings."""


def as_trained_best(*names: str) -> Callable[[Scale], list[Variant]]:
    """Return a function that gives variants by their names at a scale, with all other settings that were tried."""
    more = [name for model in names for name in (*_TRIED.get(model, ()), *_FOLLOWS.get(model, {}).values())]
    return language_models(*dict.fromkeys((*names, *more)))


def choose_settings(summary: Summary) -> Summary:
    """Choose for each model the settings, among those tried, that gave the lowest loss on validation data."""
    chosen, tried = {}, {}
    for name, others in _TRIED.items():
        finished = [one for one in (name, *others) if one in summary]
        trained = [one for one in finished if not has_diverged(summary[one])]
        if len(finished) > 1 or (finished and finished != [name]):
            best = min(trained, key=lambda one: summary[one].mean("validation_score")) if trained else finished[0]
            chosen[name], tried[name] = best, finished
    for name, settings in _FOLLOWS.items():
        (base,) = (one for one in _TRIED if one in settings)
        if base in chosen and summary.plans(name):
            chosen[name] = settings.get(chosen[base], name)
            tried[name] = [one for one in settings.values() if one in summary]
    found = Summary(summary.items(), missing=summary.missing, stand_ins={k: v for k, v in chosen.items() if k != v})
    found.tried = tried
    return found


def quoted(*names: str) -> Mapping[str, Mapping[str, str]]:
    """Return what the paper reports of some models, by name."""
    return {name: _PAPER[name] for name in names}
