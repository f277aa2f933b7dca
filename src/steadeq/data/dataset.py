"""Samples by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError


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


def hold_out(num_samples: int, num_validation: int, *, num_train: int | None = None) -> tuple[Tensor, Tensor]:
    """Return which samples to train on and which to validate on: a fixed random choice, each part in order.

    Args:
        num_samples: How many there are.
        num_validation: How many to set apart.
        num_train: How many of the others to keep; by default all.

    Raises:
        InputError: There are not as many.

    Example:
        >>> train, validation = hold_out(10, 3)
        >>> len(train), len(validation), sorted([*train.tolist(), *validation.tolist()]) == list(range(10))
        (7, 3, True)
    """
    wanted = 1 if num_train is None else num_train
    if wanted < 1 or num_validation < 1 or wanted + num_validation > num_samples:
        kept = "something to train on" if num_train is None else f"num_train ({num_train}) to train on"
        raise InputError(
            f"num_validation ({num_validation}) must be positive, and leave {kept}, of {num_samples} training samples."
        )
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0))
    apart, rest = order[:num_validation], order[num_validation:]
    return rest[: len(rest) if num_train is None else num_train].sort().values, apart.sort().values
