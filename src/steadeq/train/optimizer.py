"""Optimizers and learning rates of the paper's hyper-parameter table."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from .config import OptimizerConfig


def build_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer; its learning rate is set at each step."""
    rate, decay = config.learning_rate, config.weight_decay
    if config.method == "sgd":
        momentum, nesterov = config.momentum, config.nesterov
        return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, momentum=momentum, nesterov=nesterov)
    method = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.method]
    return method(parameters, lr=rate, weight_decay=decay, betas=config.betas)


def learning_rate(config: OptimizerConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of a step (counted from 0), in closed form.

    The cosine runs over the whole of training, warm-up included, as in the official runs.

    Example:
        >>> config = OptimizerConfig(learning_rate=1.0, warmup_steps=10)
        >>> learning_rate(config, 4, 100), round(learning_rate(config, 50, 100), 3)
        (0.5, 0.5)
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    fraction = (1 + math.cos(math.pi * step / num_steps)) / 2
    return config.min_learning_rate + fraction * (config.learning_rate - config.min_learning_rate)
