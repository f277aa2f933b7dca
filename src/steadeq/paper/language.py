"""The language models that several tables and figures show, at each scale, with what the paper reports of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..lab.config import TrainConfig
from ..lab.recipes.registry import Scale
from ..models import DEQTransformerLM
from .variant import SEEDS, Variant

POST, PRE = "DEQ (Post-LN)", "DEQ (Pre-LN)"
POST_JR, PRE_JR = "DEQ (Post-LN) + JR", "DEQ (Pre-LN) + JR"
STOPPED, SMALL_BUDGET = "DEQ (Post-LN), early stopped", "DEQ (Post-LN), trained with fewer evaluations"
NO_WEIGHT_NORM, WEIGHT_DECAY = "DEQ (Post-LN), no weight norm", "DEQ (Post-LN), weight decay"
TRANSFORMER_XL, TIED = "Transformer-XL", "Transformer, tied layers"


def language_models(*names: str) -> Callable[[Scale], list[Variant]]:
    """Return a function that gives variants by their names, at a scale."""

    def choose(scale: Scale) -> list[Variant]:
        known = {variant.name: variant for variant in VARIANTS[scale]}
        return [known[name] for name in names]

    return choose


def _without_weight_norm(config: TrainConfig) -> TrainConfig:
    assert isinstance(config.model, DEQTransformerLM.Config)
    return replace(config, model=replace(config.model, weight_norm=False))


def _with_weight_decay(config: TrainConfig) -> TrainConfig:
    return replace(config, optimizer=replace(config.optimizer, weight_decay=1e-6))


def _with_15_evaluations(config: TrainConfig) -> TrainConfig:
    return config.with_max_evals(15)


def _paper(perplexity: str, max_evals: str, time: str, memory: str) -> Mapping[str, str]:
    return {"score": perplexity, "max_evals": max_evals, "time": time, "memory_mb": memory}


# Tables 1 and 4 of the paper.
_PAPER: Mapping[str, Mapping[str, str]] = {
    TRANSFORMER_XL: _paper("24.1", "-", "1x", "9.0 GB"),
    PRE: _paper("diverged", "30", "3.1x", "-"),
    POST: _paper("24.0", "30", "3.1x", "3.9 GB"),
    STOPPED: _paper("29.2", "12", "3.1x", "3.9 GB"),
    SMALL_BUDGET: _paper("diverged", "15", "-", "3.6 GB"),
    PRE_JR: _paper("24.5", "14", "1.6x", "4.8 GB"),
    POST_JR: _paper("24.9", "12", "1.5x", "4.8 GB"),
}


def _cpu(name: str, recipe: str, max_evals: int, minutes: float, seeds: tuple[int, ...] = (0,)) -> Variant:
    return Variant(
        name=name,
        recipe=f"wikitext2-{recipe}-cpu",
        max_evals=max_evals,
        seeds=seeds,
        paper=_PAPER.get(name, {}),
        minutes=minutes,
    )


def _full(
    name: str, recipe: str, max_evals: int, change: Callable[[TrainConfig], TrainConfig] | None = None
) -> Variant:
    return Variant(
        name=name,
        recipe=f"wikitext103-{recipe}",
        max_evals=max_evals,
        seeds=(0,),
        change=change,
        paper=_PAPER.get(name, {}),
        minutes=10_000,
    )


VARIANTS: Mapping[Scale, tuple[Variant, ...]] = {
    "cpu": (
        _cpu(TRANSFORMER_XL, "transformer-xl", 0, 3, seeds=(0, 1)),
        _cpu(TIED, "tied-transformer", 0, 7),
        _cpu(PRE, "deq-pre", 30, 10, seeds=(0, 1)),
        _cpu(POST, "deq-post", 30, 11, seeds=SEEDS),
        _cpu(STOPPED, "deq-post", 12, 11, seeds=SEEDS),
        _cpu(SMALL_BUDGET, "deq-post-small-budget", 12, 7),
        _cpu(PRE_JR, "deq-pre-jr", 12, 7),
        _cpu(POST_JR, "deq-post-jr", 12, 6, seeds=SEEDS),
        _cpu(NO_WEIGHT_NORM, "deq-post-no-weight-norm", 30, 11),
        _cpu(WEIGHT_DECAY, "deq-post-weight-decay", 30, 11),
    ),
    "paper": (
        _full(TRANSFORMER_XL, "transformer-xl", 0),
        _full(PRE, "deq-pre", 30),
        _full(POST, "deq-post", 30),
        _full(STOPPED, "deq-post", 12),
        _full(SMALL_BUDGET, "deq-post", 15, _with_15_evaluations),
        _full(PRE_JR, "deq-pre-jr", 14),
        _full(POST_JR, "deq-post-jr", 12),
        _full(NO_WEIGHT_NORM, "deq-post", 30, _without_weight_norm),
        _full(WEIGHT_DECAY, "deq-post", 30, _with_weight_decay),
    ),
}
"""All language models, by scale."""
