"""Which samples a step sees: a function of the seed and the step alone."""

from __future__ import annotations

from torch import Tensor, randperm

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
