"""Optimizers and their learning rates."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import nn

from ..checks import check_count, check_not_negative, check_positive


@dataclass(frozen=True, kw_only=True)
class AbstractOptimizer(ABC):
    """How parameters are updated; one subclass for each method."""

    optimizer_class: ClassVar[Callable[..., torch.optim.Optimizer]]
    """What `build` calls."""

    learning_rate: float = 1e-3
    """Largest learning rate, which is reached at the end of the warm-up."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up: "cosine" falls to min_learning_rate by the end of the run, "constant" stays."""
    warmup_steps: int = 0
    """Number of first steps over which the learning rate rises linearly from zero; 0 starts at the largest."""
    min_learning_rate: float = 0.0
    """Learning rate at the end of the cosine schedule."""
    weight_decay: float = 0.0
    """Weight decay: an L2 penalty on the parameters in Adam and SGD, decoupled from the gradient in AdamW; 0 for
    none."""
    max_grad_norm: float | None = None
    """Largest norm of the gradient; larger gradients are scaled down to it. None switches this off."""

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_count("warmup_steps", self.warmup_steps, minimum=0)
        check_not_negative("min_learning_rate", self.min_learning_rate)
        check_not_negative("weight_decay", self.weight_decay)
        if self.max_grad_norm is not None:
            check_positive("max_grad_norm", self.max_grad_norm)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer, which takes the fields of subclasses by name; its learning rate is set at each step."""
        common = {field.name for field in fields(AbstractOptimizer)}
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in common}
        return self.optimizer_class(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, **own)

    def rate(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step (counted from 0), in closed form.

        The cosine runs over the whole of training, warm-up included, as in the official runs.

        Example:
            >>> optimizer = Adam(learning_rate=1.0, warmup_steps=10)
            >>> optimizer.rate(4, 100), round(optimizer.rate(50, 100), 3)
            (0.5, 0.5)
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        fraction = (1 + math.cos(math.pi * step / num_steps)) / 2
        return self.min_learning_rate + fraction * (self.learning_rate - self.min_learning_rate)


@dataclass(frozen=True, kw_only=True)
class Adam(AbstractOptimizer):
    """Adam (Kingma and Ba, 2015)."""

    optimizer_class = torch.optim.Adam

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's running means of the gradient and of its square."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}; both must be in [0, 1).")


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    optimizer_class = torch.optim.AdamW


@dataclass(frozen=True, kw_only=True)
class SGD(AbstractOptimizer):
    """Stochastic gradient descent with momentum."""

    optimizer_class = torch.optim.SGD

    momentum: float = 0.9
    """Momentum: the share of the last update that goes into the next; 0 for plain gradient descent."""
    nesterov: bool = False
    """Use Nesterov's momentum, which looks one update ahead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must be in [0, 1).")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov is True; it needs some momentum.")
