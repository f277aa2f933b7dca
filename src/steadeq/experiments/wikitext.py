"""The language models that several tables and figures show, at both scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..recipes.registry import Scale
from .entries import Entry

DATA: dict[Scale, str] = {"cpu": "wikitext-2", "paper": "wikitext-103"}
POST, PRE = "DEQ (Post-LN)", "DEQ (Pre-LN)"
POST_JR, PRE_JR = "DEQ (Post-LN) + JR", "DEQ (Pre-LN) + JR"
STOPPED, SMALL_BUDGET = "DEQ (Post-LN), early stopped", "DEQ (Post-LN), trained with fewer evaluations"
NO_WEIGHT_NORM, WEIGHT_DECAY = "DEQ (Post-LN), no weight norm", "DEQ (Post-LN), weight decay"
TRANSFORMER_XL, TIED = "Transformer-XL", "Transformer, tied layers"

# What the paper reports in Tables 1 and 4.
_PAPER: dict[str, dict[str, str]] = {
    TRANSFORMER_XL: {"PPL": "24.1", "NFE": "-", "time": "1x", "memory": "9.0 GB"},
    PRE: {"PPL": "diverged", "NFE": "30", "time": "3.1x", "memory": "-"},
    POST: {"PPL": "24.0", "NFE": "30", "time": "3.1x", "memory": "3.9 GB"},
    STOPPED: {"PPL": "29.2", "NFE": "12", "time": "3.1x", "memory": "3.9 GB"},
    SMALL_BUDGET: {"PPL": "diverged", "NFE": "15", "time": "-", "memory": "3.6 GB"},
    PRE_JR: {"PPL": "24.5", "NFE": "14", "time": "1.6x", "memory": "4.8 GB"},
    POST_JR: {"PPL": "24.9", "NFE": "12", "time": "1.5x", "memory": "4.8 GB"},
}


def entries_of(*names: str) -> Callable[[Scale], list[Entry]]:
    """Return a function that gives entries by their names, at a scale."""

    def choose(scale: Scale) -> list[Entry]:
        known = (_cpu if scale == "cpu" else _paper)()
        return [known[name] for name in names]

    return choose


def _cpu() -> dict[str, Entry]:
    def entry(name: str, recipe: str, max_evals: int, **options: Any) -> Entry:
        return Entry(
            name=name, recipe=f"wikitext2-{recipe}-cpu", max_evals=max_evals, paper=_PAPER.get(name, {}), **options
        )

    return {
        found.name: found
        for found in (
            entry(TRANSFORMER_XL, "transformer-xl", 0, seeds=(0, 1)),
            entry(TIED, "tied-transformer", 0, seeds=(0,)),
            entry(PRE, "deq-pre", 30, seeds=(0, 1)),
            entry(POST, "deq-post", 30),
            entry(STOPPED, "deq-post", 12),
            entry(SMALL_BUDGET, "deq-post-small-budget", 12, seeds=(0,)),
            entry(PRE_JR, "deq-pre-jr", 12, seeds=(0,)),
            entry(POST_JR, "deq-post-jr", 12),
            entry(NO_WEIGHT_NORM, "deq-post-no-weight-norm", 30, seeds=(0,)),
            entry(WEIGHT_DECAY, "deq-post-weight-decay", 30, seeds=(0,)),
        )
    }


def _paper() -> dict[str, Entry]:
    def entry(name: str, recipe: str, max_evals: int, changes: Mapping[str, Any] | None = None) -> Entry:
        return Entry(
            name=name,
            recipe=f"wikitext103-{recipe}",
            max_evals=max_evals,
            seeds=(0,),
            changes=changes or {},
            paper=_PAPER.get(name, {}),
        )

    fewer = {"forward.max_evals": 15, "backward.max_evals": 15}
    return {
        found.name: found
        for found in (
            entry(TRANSFORMER_XL, "transformer-xl", 0),
            entry(PRE, "deq-pre", 30),
            entry(POST, "deq-post", 30),
            entry(STOPPED, "deq-post", 12),
            entry(SMALL_BUDGET, "deq-post", 15, fewer),
            entry(PRE_JR, "deq-pre-jr", 14),
            entry(POST_JR, "deq-post-jr", 12),
            entry(NO_WEIGHT_NORM, "deq-post", 30, {"model.weight_norm": False}),
            entry(WEIGHT_DECAY, "deq-post", 30, {"optimizer.weight_decay": 1e-6}),
        )
    }
