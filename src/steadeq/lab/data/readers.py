"""How data sets are read: what a training step sees is a function of the seed and the step alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ..errors import InputError
from ..seeds import derive_generator, derive_seed
from .dataset import AbstractDataset, MapDataset, check_all_targets, check_targets, read_samples


class AbstractReader(ABC):
    """Reads the parts of the batches that one process trains on."""

    steps_per_epoch: int
    """Number of batches in one pass over the data."""
    is_contiguous: bool = False
    """Whether each row of a batch goes on where the same row of the batch before ended, so that a carry is kept."""

    @abstractmethod
    def num_samples(self, step: int) -> int:
        """Return the number of samples of the batch of a step, over all processes."""

    @abstractmethod
    def get(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of one of the parts into which the batch of a step, counted from 0, is cut."""

    @abstractmethod
    def close(self) -> None:
        """Stop the work in the background."""


class AbstractContiguousDataset(AbstractDataset):
    """A data set whose samples follow one another, so that it decides itself in which order it is read."""

    @abstractmethod
    def open_reader(self, *, batch_size: int, num_parts: int, parts: Sequence[int], seed: int) -> AbstractReader:
        """Return the reader of a process; see the function of that name."""

    @abstractmethod
    def evaluation_batches(self, *, batch_size: int, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a process; see the function of that name."""


class BatchOrder:
    """Shuffled epochs, each batch cut into parts for processes and accumulation.

    The last batch of an epoch is smaller where the samples do not fill it, and its parts may then differ by one sample.
    It is left out if there is not a sample for each part.
    """

    def __init__(self, num_samples: int, *, batch_size: int, num_parts: int, seed: int) -> None:
        if batch_size > num_samples:
            raise InputError(f"loop.batch_size is {batch_size}, but there are only {num_samples} samples to train on.")
        check_parts(batch_size, num_parts)
        self.num_samples, self.batch_size, self.num_parts, self.seed = num_samples, batch_size, num_parts, seed
        num_full, rest = divmod(num_samples, batch_size)
        self.steps_per_epoch = num_full + (rest >= num_parts)
        self._epoch, self._order = -1, None

    def size(self, step: int) -> int:
        """Return the number of samples of the batch of a step."""
        begin = step % self.steps_per_epoch * self.batch_size
        return min(self.batch_size, self.num_samples - begin)

    def indices(self, step: int, part: int) -> Tensor:
        """Return which samples are in a part of the batch of a step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._order is None or epoch != self._epoch:
            generator = derive_generator(self.seed, "order", epoch)
            self._epoch, self._order = epoch, torch.randperm(self.num_samples, generator=generator)
        begin = position * self.batch_size
        return self._order[begin : begin + self.batch_size].tensor_split(self.num_parts)[part]


class SampleReader(AbstractReader):
    """Reads samples by index; what has to be read from disk is read ahead."""

    def __init__(
        self,
        dataset: MapDataset,
        order: BatchOrder,
        *,
        parts: Sequence[int],
        seed: int,
        num_classes: int | None = None,
    ) -> None:
        self._dataset, self._order, self._parts, self._seed = dataset, order, parts, seed
        self._num_classes = num_classes
        self.steps_per_epoch = order.steps_per_epoch
        # A data set of somebody else draws from the global generators, which are not to be used by two threads.
        reads_ahead = isinstance(dataset, AbstractDataset) and dataset.reads_ahead
        self._thread = ThreadPoolExecutor(1) if reads_ahead else None
        self._ahead: tuple[tuple[int, int], Future[tuple[Tensor, Tensor]]] | None = None

    def num_samples(self, step: int) -> int:
        return self._order.size(step)

    def get(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        if self._thread is None:
            return self._load(step, part)
        if self._ahead is not None and self._ahead[0] == (step, part):
            batch = self._ahead[1].result()
        else:
            batch = self._thread.submit(self._load, step, part).result()
        place = self._parts.index(part) + 1
        following = (step, self._parts[place]) if place < len(self._parts) else (step + 1, self._parts[0])
        self._ahead = following, self._thread.submit(self._load, *following)
        return batch

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _load(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        seed = derive_seed(self._seed, "augmentation", step, part)
        inputs, targets = read_samples(self._dataset, self._order.indices(step, part), seed=seed)
        if self._num_classes is not None:
            check_targets(targets, self._num_classes)
        return inputs, targets


def open_reader(
    dataset: MapDataset,
    *,
    batch_size: int,
    num_parts: int,
    parts: Sequence[int],
    seed: int,
    num_classes: int | None = None,
) -> AbstractReader:
    """Return what a process trains on: contiguous data in its own order, all else in an order that the seed draws.

    Args:
        dataset: The data set to train on; any map-style data set works.
        batch_size: Number of samples of a step, over all processes.
        num_parts: Number of parts into which a batch is cut.
        parts: Those parts that this process trains on.
        seed: Seed of the run.
        num_classes: Number of classes that the model has, if it is known. A label beyond them is refused: at once if
            the data set has all its labels as `targets`, and else when it is read.

    Example:
        >>> from steadeq.lab.data import InMemory
        >>> dataset = InMemory(inputs=torch.arange(6.0), targets=torch.arange(6))
        >>> reader = open_reader(dataset, batch_size=4, num_parts=2, parts=[0, 1], seed=0)
        >>> x, y = reader.get(step=0, part=1)
        >>> reader.steps_per_epoch, x.shape
        (2, torch.Size([2]))
    """
    if isinstance(dataset, AbstractContiguousDataset):
        return dataset.open_reader(batch_size=batch_size, num_parts=num_parts, parts=parts, seed=seed)
    if num_classes is not None:
        check_all_targets(dataset, num_classes)
    order = BatchOrder(len(dataset), batch_size=batch_size, num_parts=num_parts, seed=seed)
    return SampleReader(dataset, order, parts=parts, seed=seed, num_classes=num_classes)


def evaluation_batches(
    dataset: MapDataset, *, batch_size: int, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what a process evaluates: contiguous data in its own order, all else sample by sample, not augmented.

    The processes, `world_size` of them, share the samples.
    """
    if isinstance(dataset, AbstractContiguousDataset):
        yield from dataset.evaluation_batches(batch_size=batch_size, rank=rank, world_size=world_size)
        return
    for indices in torch.arange(rank, len(dataset), world_size).split(batch_size):
        yield read_samples(dataset, indices)


def is_contiguous(dataset: MapDataset) -> bool:
    """Return whether each row of a batch goes on where the same row of the batch before ended."""
    return isinstance(dataset, AbstractContiguousDataset)


def check_parts(batch_size: int, num_parts: int) -> None:
    """Refuse a batch that cannot be cut into equal parts."""
    if batch_size % num_parts:
        raise InputError(
            f"loop.batch_size is {batch_size}; it must be a multiple of processes times loop.accumulate ({num_parts})."
        )
