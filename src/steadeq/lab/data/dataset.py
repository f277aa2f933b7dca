"""Data sets: samples by index, and the configs that load them."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor
from torch.utils import data

from ...checks import check_count
from ..errors import InputError
from ..tasks import IGNORED, AbstractTask
from .vocabulary import Vocabulary

_NUM_LOOKED_AT = 16
"""Number of samples by which data sets that are not in memory are told apart."""


class MapDataset(Sized, Protocol):
    """Data to train on: any map-style `torch.utils.data.Dataset` of (input, target) pairs."""

    def __getitem__(self, index: int, /) -> Any: ...


class AbstractDataset(data.Dataset[tuple[Tensor, Tensor]], ABC):
    """A map-style data set that makes whole batches faster than sample by sample."""

    reads_ahead: ClassVar[bool] = True
    """Whether the next batch is to be made by a thread while the network works on this one."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples, augmented at random if there is a generator."""

    def fingerprint(self) -> str:
        """Return a digest of the samples; see the function `fingerprint`."""
        return digest(len(self), *self.batch(spread_over(len(self), _NUM_LOOKED_AT)))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} samples; index {index} is out of range.")
        inputs, targets = self.batch(torch.tensor([index % len(self)]))
        return inputs[0], targets[0]

    def all(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of all samples, for data that is small."""
        return self.batch(torch.arange(len(self)))


@dataclass(frozen=True, kw_only=True, eq=False)
class InMemory(AbstractDataset):
    """Inputs and targets in memory, one row a sample.

    Example:
        >>> dataset = InMemory(inputs=torch.arange(6.0).reshape(3, 2), targets=torch.tensor([0, 1, 0]))
        >>> dataset.batch(torch.tensor([2, 0]))
        (tensor([[4., 5.],
                [0., 1.]]), tensor([0, 0]))
        >>> dataset[1]
        (tensor([2., 3.]), tensor(1))
    """

    # What is in memory is there at once; a thread would only get in the way.
    reads_ahead = False

    inputs: Tensor
    """(N, ...) in whatever dtype is compact."""
    targets: Tensor
    """(N, ...) what the network should answer."""
    prepare: Callable[[Tensor, torch.Generator | None], Tensor] | None = None
    """Turns a batch of rows into what the model takes; with a generator, it may augment."""

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[indices]
        if self.prepare is not None:
            inputs = self.prepare(inputs, generator)
        return inputs, self.targets[indices]

    def fingerprint(self) -> str:
        return digest(self.inputs, self.targets)

    def subset(self, begin: int, end: int) -> InMemory:
        """Return the samples from `begin` up to `end`."""
        return InMemory(inputs=self.inputs[begin:end], targets=self.targets[begin:end], prepare=self.prepare)


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """The samples to train, validate and test on."""

    train: MapDataset
    """Samples to train on."""
    validation: MapDataset
    """Samples to evaluate on during training."""
    test: MapDataset
    """Samples to report results on."""


@dataclass(frozen=True, kw_only=True)
class AbstractDataConfig(ABC):
    """Which data, and how much of it; one subclass for each data set."""

    name: ClassVar[str]
    """Name of the data set."""
    task: ClassVar[AbstractTask]
    """What a network is asked to do with it."""
    eval_batch_size: ClassVar[int] = 250
    """Number of samples (for text: streams) that a model without a config of its own is evaluated on at a time."""

    @abstractmethod
    def load(self) -> Splits:
        """Return the data."""

    def load_split(self, split: Literal["train", "validation", "test"]) -> MapDataset:
        """Return one part of the data; a data set may do that without reading the others."""
        return getattr(self.load(), split)

    def vocabulary(self) -> Vocabulary | None:
        """Return the tokens that numbers of texts stand for; None for data that are no text."""
        return None


def read_samples(dataset: MapDataset, indices: Tensor, *, seed: int | None = None) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of some samples of any map-style data set.

    Augmentations are drawn from the seed; without one, samples are not augmented, if the data set allows that.
    """
    if isinstance(dataset, AbstractDataset):
        return dataset.batch(indices, None if seed is None else torch.Generator().manual_seed(seed))
    # A data set of somebody else draws its augmentations from the global generators: from a fixed place in them, so
    # that a run that is resumed sees the same samples.
    with _seeded(0 if seed is None else seed):
        samples = [dataset[index] for index in indices.tolist()]
        if any(not isinstance(sample, Sequence) or len(sample) != 2 for sample in samples):
            raise InputError(
                f"data has samples that are not pairs of an input and a target ({type(dataset).__name__})."
            )
        inputs, targets = data.default_collate(samples)
    return inputs, targets


def check_targets(targets: Tensor, num_classes: int) -> None:
    """Refuse labels for which a model with this number of classes has no output; other targets pass.

    Example:
        >>> check_targets(torch.tensor([0, 9]), 10)
        >>> check_targets(torch.tensor([0, 10]), 10)
        Traceback (most recent call last):
            ...
        steadeq.lab.errors.InputError: model.num_classes is 10, but the data has a label 10; labels are from 0 to 9.
    """
    if targets.is_floating_point() or targets.is_complex():
        return
    # In a map of labels there are pixels that do not count.
    labels = targets if targets.dim() < 2 else targets[targets != IGNORED]
    for label in (int(labels.min()), int(labels.max())) if labels.numel() else ():
        if not 0 <= label < num_classes:
            raise InputError(
                f"model.num_classes is {num_classes}, but the data has a label {label}; labels are from 0 to "
                f"{num_classes - 1}."
            )


def check_all_targets(dataset: MapDataset, num_classes: int) -> None:
    """Refuse a data set that has all its labels in memory, as `targets`, if a model has no output for one of them."""
    targets = getattr(dataset, "targets", None)
    if isinstance(targets, list) and all(type(target) is int for target in targets):
        # As the data sets of torchvision have them.
        targets = torch.tensor(targets)
    if isinstance(targets, Tensor):
        check_targets(targets, num_classes)


def fingerprint(dataset: MapDataset) -> str:
    """Return a digest that identifies a data set: of all samples if they are in memory, else of some of them."""
    if isinstance(dataset, AbstractDataset):
        return dataset.fingerprint()
    return digest(len(dataset), *read_samples(dataset, spread_over(len(dataset), _NUM_LOOKED_AT)))


def digest(*parts: Tensor | str | int) -> str:
    """Return the digest of tensors, texts and numbers.

    Example:
        >>> digest("a", 1) == digest("a", 1), digest(torch.zeros(2)) == digest(torch.zeros(2, 1))
        (True, False)
    """
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            total.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            flat = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            total.update(flat.numpy())  # pyright: ignore[reportArgumentType] (an array is a buffer)
        else:
            total.update(f"{part}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def spread_over(num_samples: int, count: int) -> Tensor:
    """Return the places of some samples, spread evenly from the first to the last.

    Example:
        >>> spread_over(6, 4).tolist(), spread_over(2, 4).tolist()
        ([0, 2, 3, 5], [0, 1])
    """
    return torch.linspace(0, num_samples - 1, min(count, num_samples)).round().long()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of PyTorch (on the CPU) and of Python, and give them back as they were."""
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would seed the GPUs too.
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            yield
    finally:
        random.setstate(state)


def hold_out(num_samples: int, num_validation: int, *, num_train: int | None = None) -> tuple[Tensor, Tensor]:
    """Return which samples to train on, by default all others, and which to validate on: a fixed random choice, sorted.

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


def check_seed(name: str, value: int) -> None:
    """Refuse a seed of generated data that is negative or too large for a generator."""
    check_count(name, value, minimum=0)
    if value >= 2**63:
        raise ValueError(f"{name} is {value}; it must be below 2**63.")


def check_limited(name: str, value: int, *, minimum: int = 1, maximum: int) -> None:
    """Refuse a count that is too small, or so large that it can only be a typo and would use up the memory."""
    check_count(name, value, minimum=minimum)
    if value > maximum:
        raise ValueError(f"{name} is {value}; it must be at most {maximum:,}.")
