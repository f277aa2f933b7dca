"""What a model hands on from one step to the next."""

from __future__ import annotations

import torch

from .adapter import Carry
from .distributed import Process


class CarryStore:
    """The carry of each part of a batch; none of them for models and data that have no such thing.

    What a step leaves behind is proposed first, and kept only if the step was good: a state that is not finite would
    spoil all steps after it.

    Args:
        process: This process.
        num_parts: Parts of a batch that this process trains on.
    """

    def __init__(self, process: Process, *, num_parts: int) -> None:
        self._process = process
        self._kept: list[Carry | None] = [None] * num_parts
        self._proposed: list[Carry | None] = [None] * num_parts

    def clear(self) -> None:
        """Forget, as at the beginning of a text."""
        self._kept = [None] * len(self._kept)

    def recall(self, index: int) -> Carry | None:
        """Return the carry of a part."""
        return self._kept[index]

    def propose(self, index: int, carry: Carry | None) -> None:
        """Take what a step leaves behind for a part."""
        self._proposed[index] = carry

    def keep(self) -> None:
        """Remember what was proposed."""
        self._kept = list(self._proposed)

    def state_dict(self) -> list[torch.Tensor] | None:
        """Return the carry of the whole batch, over all parts of all processes; all of them must call this."""
        kept = [carry for carry in self._kept if carry is not None]
        if not kept:
            return None
        return [self._process.concatenate(torch.cat(parts)).cpu() for parts in zip(*kept, strict=True)]

    def load_state_dict(self, state: list[torch.Tensor] | None) -> None:
        """Take back what `state_dict` returned, each part its own rows."""
        if state is None:
            self.clear()
            return
        num_parts = len(self._kept)
        first = self._process.rank * num_parts
        shares = [part.to(self._process.device).chunk(num_parts * self._process.world_size) for part in state]
        self._kept = [tuple(share[first + index] for share in shares) for index in range(num_parts)]
