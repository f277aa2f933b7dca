"""Randomness as a function of where it is used.

Nothing random depends on what happened before: the seed of each draw is derived from the run's seed and the place of
the draw (such as the step). So a resumed run needs no generator states, and a run on two processes draws what a run
on one process draws for the same part of the batch.
"""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *labels: str | int) -> int:
    """Return a seed for one place.

    Example:
        >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1)
        True
        >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 2)
        False
    """
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def derive_generator(seed: int, *labels: str | int) -> torch.Generator:
    """Return a generator for one place, on the CPU."""
    return torch.Generator().manual_seed(derive_seed(seed, *labels))
