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
    def check(self, output: Tensor, target: Tensor) -> None:
        """Refuse an output that cannot answer the target.

        Raises:
            ValueError: Saying what does not fit.
        """

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

    def check(self, output: Tensor, target: Tensor) -> None:
        """Refuse another shape."""
        if output.shape != target.shape:
            raise ValueError(f"the output is {tuple(output.shape)}, the target {tuple(target.shape)}.")

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

    def check(self, output: Tensor, target: Tensor) -> None:
        """Refuse too few classes."""
        if output.shape[1] <= int(target.max()):
            raise ValueError(f"num_classes is {output.shape[1]}, but there is a class {int(target.max())}.")

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropies."""
        return F.cross_entropy(output.float(), target, reduction="none")

    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Return 1 where the largest logit is the right class, else 0."""
        return (output.argmax(dim=1) == target).float()
