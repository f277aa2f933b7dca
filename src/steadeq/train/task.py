"""What a network is asked to do: the loss it learns from and the metric it is judged by."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from ..models import Predictions


@dataclass(frozen=True, kw_only=True)
class AbstractTask(ABC):
    """A loss and a metric, both as one number a sample; batches are averaged by who calls."""

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    unit: ClassVar[str] = "sample"
    """What is counted, and what times are given for."""

    @abstractmethod
    def check(self, output: Any, target: Tensor) -> None:
        """Refuse an output that cannot answer the target.

        Raises:
            ValueError: Saying what does not fit.
        """

    @abstractmethod
    def losses(self, output: Any, target: Tensor) -> Tensor:
        """Return the (B,) losses."""

    @abstractmethod
    def scores(self, output: Any, target: Tensor, losses: Tensor) -> Tensor:
        """Return the (B,) scores.

        Args:
            output: Of the network.
            target: What was asked for.
            losses: What `losses` returned for both.
        """

    def summarize(self, score: float) -> float:
        """Return the metric of samples, given their mean score."""
        return score

    def num_units(self, target: Tensor) -> int:
        """Return how many units each sample of a batch is."""
        return 1


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

    def scores(self, output: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        """Return the squared errors."""
        return losses


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

    def scores(self, output: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        """Return 1 where the largest logit is the right class, else 0."""
        return (output.argmax(dim=1) == target).float()


@dataclass(frozen=True, kw_only=True)
class LanguageModeling(AbstractTask):
    """Negative log-likelihood of the words that follow, and perplexity."""

    metric = "perplexity"
    higher_is_better = False
    unit = "word"

    def check(self, output: Predictions, target: Tensor) -> None:
        """Refuse a smaller vocabulary."""
        num_words = output.softmax.embedding.num_words
        if num_words <= int(target.max()):
            raise ValueError(f"num_words is {num_words}, but there is a word of number {int(target.max())}.")

    def losses(self, output: Predictions, target: Tensor) -> Tensor:
        """Return the means over the words of each sample."""
        return output.losses(target).mean(dim=1)

    def scores(self, output: Predictions, target: Tensor, losses: Tensor) -> Tensor:
        """Return the losses, which are averaged before they become a perplexity."""
        return losses

    def summarize(self, score: float) -> float:
        """Return the perplexity; infinite where a number cannot hold it."""
        return math.exp(score) if score < 700 else math.inf

    def num_units(self, target: Tensor) -> int:
        """Return the number of words."""
        return target.shape[1]
