"""What a step reads: a function of the seed and the step alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor, randperm

from ..data import AbstractDataset, Dataset, Text
from ..errors import InputError
from .seeds import derive_generator


class BatchOrder:
    """Shuffled epochs of full batches, each cut into parts of equal size for processes and accumulation.

    Args:
        num_samples: In the dataset; what does not fill a batch is left out of an epoch.
        batch_size: Samples a step.
        num_parts: Parts of a batch.
        seed: Of the run.

    Raises:
        InputError: The numbers do not fit.
    """

    def __init__(self, num_samples: int, *, batch_size: int, num_parts: int, seed: int) -> None:
        if batch_size > num_samples:
            raise InputError(f"loop.batch_size is {batch_size}, but there are only {num_samples} samples to train on.")
        _check_parts(batch_size, num_parts)
        self.num_samples, self.batch_size, self.num_parts, self.seed = num_samples, batch_size, num_parts, seed
        self.steps_per_epoch = num_samples // batch_size
        self._epoch, self._order = -1, None

    def indices(self, step: int, part: int) -> Tensor:
        """Return the samples of a part of the batch of a step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._order is None or epoch != self._epoch:
            generator = derive_generator(self.seed, "order", epoch)
            self._epoch, self._order = epoch, randperm(self.num_samples, generator=generator)
        size = self.batch_size // self.num_parts
        begin = position * self.batch_size + part * size
        return self._order[begin : begin + size]


class AbstractBatches(ABC):
    """The parts of batches that one process trains on."""

    steps_per_epoch: int
    """Batches in one pass over the data."""
    is_contiguous: bool = False
    """Whether each row of a batch goes on where the same row of the one before ended."""

    @abstractmethod
    def get(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a part of the batch of a step."""

    @abstractmethod
    def close(self) -> None:
        """End what goes on in the background."""


class SampleBatches(AbstractBatches):
    """Samples by index; what has to be read from disk is read ahead.

    Args:
        dataset: To train on.
        order: Which samples a step sees.
        parts: Of each batch, those of this process.
        seed: Of the run.
    """

    def __init__(self, dataset: AbstractDataset, order: BatchOrder, *, parts: Sequence[int], seed: int) -> None:
        self._dataset, self._order, self._parts, self._seed = dataset, order, parts, seed
        self.steps_per_epoch = order.steps_per_epoch
        # What is in memory is there at once; a thread would only get in the way.
        self._thread = None if isinstance(dataset, Dataset) else ThreadPoolExecutor(1)
        self._ahead: tuple[tuple[int, int], Future[tuple[Tensor, Tensor]]] | None = None

    def get(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a part of the batch of a step."""
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
        """End the reading ahead."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _load(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        generator = derive_generator(self._seed, "augmentation", step, part)
        return self._dataset.batch(self._order.indices(step, part), generator)


class StreamBatches(AbstractBatches):
    """Segments of a text that follow one another in as many streams as a batch has rows.

    A segment at the end that is shorter than the others is left out.

    Args:
        text: To train on.
        batch_size: Number of streams, over all processes.
        num_parts: Parts of a batch.

    Raises:
        InputError: The numbers do not fit.
    """

    is_contiguous = True

    def __init__(self, text: Text, *, batch_size: int, num_parts: int) -> None:
        _check_parts(batch_size, num_parts)
        self._streams = text.streams(batch_size)
        self._size = batch_size // num_parts
        self.steps_per_epoch = (self._streams.columns.shape[1] - 1) // text.length
        if self.steps_per_epoch == 0:
            raise InputError(
                f"A text of {len(text.tokens)} tokens is too short for {batch_size} streams (loop.batch_size) of at "
                f"least {text.length} tokens (data.length)."
            )

    def get(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """Return words, and the words after each of them, of a part of the batch of a step."""
        words, following = self._streams.segment(step % self.steps_per_epoch)
        rows = slice(part * self._size, (part + 1) * self._size)
        return words[rows], following[rows]

    def close(self) -> None:
        """Do nothing, as nothing is read ahead."""


def open_batches(
    dataset: AbstractDataset, *, batch_size: int, num_parts: int, parts: Sequence[int], seed: int
) -> AbstractBatches:
    """Return what a process trains on: a text is read in order, everything else in an order that the seed draws.

    Args:
        dataset: To train on.
        batch_size: Samples a step, over all processes.
        num_parts: Parts of a batch.
        parts: Those of this process.
        seed: Of the run.

    Raises:
        InputError: The numbers do not fit.
    """
    if isinstance(dataset, Text):
        return StreamBatches(dataset, batch_size=batch_size, num_parts=num_parts)
    order = BatchOrder(len(dataset), batch_size=batch_size, num_parts=num_parts, seed=seed)
    return SampleBatches(dataset, order, parts=parts, seed=seed)


def _check_parts(batch_size: int, num_parts: int) -> None:
    if batch_size % num_parts:
        raise InputError(
            f"loop.batch_size is {batch_size}; it must be a multiple of processes times loop.accumulate ({num_parts})."
        )
