"""Budgets of recipes."""

from __future__ import annotations

from dataclasses import replace

from ..train import TrainConfig


def with_budget(config: TrainConfig, max_evals: int) -> TrainConfig:
    """Return a config with another budget of evaluations, forward and backward."""
    return replace(
        config,
        forward=replace(config.forward, max_evals=max_evals),
        backward=replace(config.backward, max_evals=max_evals),
    )
