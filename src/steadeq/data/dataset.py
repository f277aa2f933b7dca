"""Samples by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class AbstractDataset(ABC):
    """What can be made into batches by index."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples.

        Args:
            indices: Which samples.
            generator: Source of random augmentations; without one there are none.
        """

    def everything(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of all samples, for data that is small."""
        return self.batch(torch.arange(len(self)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset(AbstractDataset):
    """Inputs and targets in memory, one row a sample.

    Example:
        >>> dataset = Dataset(inputs=torch.arange(6.0).reshape(3, 2), targets=torch.tensor([0, 1, 0]))
        >>> dataset.batch(torch.tensor([2, 0]))
        (tensor([[4., 5.],
                [0., 1.]]), tensor([0, 0]))
    """

    inputs: Tensor
    """(N, ...) in whatever dtype is compact."""
    targets: Tensor
    """(N, ...)."""
    prepare: Callable[[Tensor, torch.Generator | None], Tensor] | None = None
    """Turns a batch of rows into what the model takes; with a generator, it may augment."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.inputs.shape[0]

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples, augmented if there is a generator."""
        inputs = self.inputs[indices]
        if self.prepare is not None:
            inputs = self.prepare(inputs, generator)
        return inputs, self.targets[indices]

    def subset(self, begin: int, end: int) -> Dataset:
        """Return the samples from `begin` up to `end`."""
        return Dataset(inputs=self.inputs[begin:end], targets=self.targets[begin:end], prepare=self.prepare)


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """What to learn from, what to choose by, and what to report on."""

    train: AbstractDataset
    validation: AbstractDataset
    test: AbstractDataset
