"""What a network is asked to do: the loss it learns from and the metric it is judged by."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..models import Predictions
from . import notation

IGNORED = 255
"""The label of pixels that do not count."""


@dataclass(frozen=True, kw_only=True)
class AbstractTask(ABC):
    """A loss and a metric, both computed sample by sample; batches are averaged by who calls."""

    metric: ClassVar[str]
    """Name of the metric."""
    higher_is_better: ClassVar[bool]
    is_share: ClassVar[bool] = False
    """Whether the metric is a share, from 0 to 1, which is shown in percent."""
    is_labeled: ClassVar[bool] = False
    """Whether targets are numbers of classes, which a data set is searched for before training."""
    title: ClassVar[str] = ""
    """The metric in full, if its name is short."""
    unit: ClassVar[str] = "sample"
    """What is counted, and what times are given for."""

    @abstractmethod
    def check(self, output: Any, target: Tensor) -> None:
        """Raise a ValueError that says what does not fit if an output cannot be compared with the targets."""

    @abstractmethod
    def losses(self, output: Any, target: Tensor) -> Tensor:
        """Return the (B,) losses."""

    @abstractmethod
    def scores(self, output: Any, target: Tensor, losses: Tensor) -> Tensor:
        """Return what the metric is made of, given the losses too: (B,) numbers, or (B, K) if it takes several."""

    def summarize(self, scores: Sequence[float]) -> float:
        """Return the metric of many samples, given the K means of their scores."""
        return scores[0]

    def measure(self, output: Any, target: Tensor) -> Tensor:
        """Return the metric: (B,) values where it is a mean over samples, and else one for the batch."""
        scores = self.scores(output, target, self.losses(output, target)).double()
        if type(self).summarize is AbstractTask.summarize:
            return scores
        return scores.new_tensor(self.summarize(scores.mean(dim=0).reshape(-1).tolist()))

    def num_units(self, target: Tensor) -> int:
        """Return how many units each sample of a batch is."""
        return 1

    @classmethod
    def show(cls, score: float | None, digits: int = 3) -> str:
        """Return the metric as people write it; a dash where there is none.

        Example:
            >>> Classification.show(0.98333), Regression.show(0.0033467), LanguageModeling.show(None)
            ('98.3%', '3.35e-3', '-')
        """
        if score is None:
            return "-"
        return f"{100 * score:.{digits - 2}f}%" if cls.is_share else notation.small(score, digits)


@dataclass(frozen=True, kw_only=True)
class Regression(AbstractTask):
    """Squared error."""

    metric = "mse"
    title = "mean squared error"
    higher_is_better = False

    def check(self, output: Tensor, target: Tensor) -> None:
        if output.shape != target.shape:
            raise ValueError(f"the output is {tuple(output.shape)}, the target {tuple(target.shape)}.")

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().flatten(1).mean(dim=1)

    def scores(self, output: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        return losses


@dataclass(frozen=True, kw_only=True)
class Classification(AbstractTask):
    """Cross entropy, and accuracy between 0 and 1."""

    metric = "accuracy"
    higher_is_better = True
    is_share = True
    is_labeled = True

    def check(self, output: Tensor, target: Tensor) -> None:
        if output.shape[1] <= int(target.max()):
            raise ValueError(
                f"it has {output.shape[1]} outputs (num_classes), but the data has the class {int(target.max())}."
            )

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.float(), target, reduction="none")

    def scores(self, output: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        return (output.argmax(dim=1) == target).float()


@dataclass(frozen=True, kw_only=True)
class Tagging(AbstractTask):
    """Cross entropy of every position of a sequence, and the share of sequences that are right at all positions."""

    metric = "accuracy"
    higher_is_better = True
    is_share = True

    def check(self, output: Tensor, target: Tensor) -> None:
        if (output.shape[0], *output.shape[2:]) != tuple(target.shape):
            raise ValueError(f"the output is {tuple(output.shape)}, the target {tuple(target.shape)}.")
        if output.shape[1] <= int(target.max()):
            raise ValueError(f"num_classes is {output.shape[1]}, but the data has the class {int(target.max())}.")

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.float(), target, reduction="none").flatten(1).mean(dim=1)

    def scores(self, output: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        return (output.argmax(dim=1) == target).flatten(1).all(dim=1).float()


@dataclass(frozen=True, kw_only=True)
class Segmentation(AbstractTask):
    """Cross entropy of every pixel, and the mean over classes of intersection over union."""

    metric = "mIoU"
    higher_is_better = True
    is_share = True
    is_labeled = True

    def check(self, output: Tensor, target: Tensor) -> None:
        if (output.shape[0], *output.shape[2:]) != tuple(target.shape):
            raise ValueError(f"the output is {tuple(output.shape)}, the target {tuple(target.shape)}.")
        labels = target[target != IGNORED]
        if len(labels) and output.shape[1] <= int(labels.max()):
            raise ValueError(f"num_classes is {output.shape[1]}, but the data has the class {int(labels.max())}.")

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        losses = F.cross_entropy(output.float(), target, reduction="none", ignore_index=IGNORED)
        return losses.flatten(1).sum(dim=1) / (target != IGNORED).flatten(1).sum(dim=1).clamp(min=1)

    def scores(self, output: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        num_classes = output.shape[1]
        counts = target != IGNORED
        truth, found = (
            F.one_hot(torch.where(counts, labels, num_classes), num_classes + 1)[..., :num_classes].flatten(1, -2)
            for labels in (target, output.argmax(dim=1))
        )
        both = (truth * found).sum(dim=1)
        # The sizes of the intersections of all classes, and then those of the unions.
        return torch.cat([both, truth.sum(dim=1) + found.sum(dim=1) - both], dim=1).double()

    def summarize(self, scores: Sequence[float]) -> float:
        half = len(scores) // 2
        known = [both / either for both, either in zip(scores[:half], scores[half:], strict=True) if either > 0]
        return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True, kw_only=True)
class LanguageModeling(AbstractTask):
    """Negative log-likelihood of the tokens that follow, and perplexity."""

    metric = "perplexity"
    higher_is_better = False
    unit = "token"

    def check(self, output: Predictions, target: Tensor) -> None:
        vocab_size = output.softmax.embedding.vocab_size
        if vocab_size <= int(target.max()):
            raise ValueError(f"vocab_size is {vocab_size}, but the data has the token {int(target.max())}.")

    def losses(self, output: Predictions, target: Tensor) -> Tensor:
        return output.losses(target).mean(dim=1)

    def scores(self, output: Predictions, target: Tensor, losses: Tensor) -> Tensor:
        return losses

    def summarize(self, scores: Sequence[float]) -> float:
        return math.exp(scores[0]) if scores[0] < 700 else math.inf

    def num_units(self, target: Tensor) -> int:
        return target.shape[1]
