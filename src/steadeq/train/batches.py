"""Which samples a step sees: a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor, randperm

from ..data import AbstractDataset, Dataset
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
        if batch_size % num_parts:
            raise InputError(
                f"loop.batch_size is {batch_size}; it must be a multiple of processes times loop.accumulate "
                f"({num_parts})."
            )
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


class Batches:
    """The parts of batches that one process trains on; what has to be read from disk is read ahead.

    Args:
        dataset: To train on.
        order: Which samples a step sees.
        parts: Of each batch, those of this process.
        seed: Of the run.
    """

    def __init__(self, dataset: AbstractDataset, order: BatchOrder, *, parts: Sequence[int], seed: int) -> None:
        self._dataset, self._order, self._parts, self._seed = dataset, order, parts, seed
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
