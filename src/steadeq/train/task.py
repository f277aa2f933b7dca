"""What a network is asked to do: the loss it learns from and the metric it is judged by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class AbstractTask(ABC):
    """A loss and a metric, both as one number a sample; batches are averaged by who calls."""

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]

    @abstractmethod
    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the (B,) losses."""

    @abstractmethod
    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the (B,) values of the metric."""


@dataclass(frozen=True, kw_only=True)
class Regression(AbstractTask):
    """Squared error."""

    metric = "mse"
    higher_is_better = False

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the squared errors."""
        return (output - target).square().flatten(1).mean(dim=1)

    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the squared errors."""
        return self.losses(output, target)


@dataclass(frozen=True, kw_only=True)
class Classification(AbstractTask):
    """Cross entropy, and accuracy between 0 and 1."""

    metric = "accuracy"
    higher_is_better = True

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropies."""
        return F.cross_entropy(output.float(), target, reduction="none")

    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Return 1 where the largest logit is the right class, else 0."""
        return (output.argmax(dim=1) == target).float()
