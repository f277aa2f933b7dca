"""Parities of prefixes of random bit strings, a task whose number of steps grows with the length of the string."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..tasks import Tagging
from .dataset import AbstractDataConfig, InMemory, Splits, check_limited, check_seed


@dataclass(frozen=True, kw_only=True)
class PrefixSums(AbstractDataConfig):
    """Strings of random bits, and at each position whether the number of ones so far is odd.

    A task of Schwarzschild et al. (2021). Information travels along a string as far as one evaluation of a block
    reaches, so that depth pays.

    Example:
        >>> x, y = PrefixSums(num_train=1, num_validation=1, num_test=1, num_bits=6).load().train[0]
        >>> x.int().tolist(), y.tolist()
        ([[0, 1, 1, 0, 1, 1]], [0, 1, 0, 0, 1, 0])
    """

    name = "prefix-sums"
    task = Tagging()

    num_train: int = 6_400
    """Number of bit strings to train on."""
    num_validation: int = 256
    """Number of bit strings to validate on."""
    num_test: int = 512
    """Number of bit strings to test on."""
    num_bits: int = 16
    """Number of bits of each string."""
    seed: int = 0
    """Seed of the random bit strings."""

    def __post_init__(self) -> None:
        for name in ("num_train", "num_validation", "num_test"):
            check_limited(name, getattr(self, name), maximum=10_000_000)
        check_limited("num_bits", self.num_bits, maximum=100_000)
        check_seed("seed", self.seed)

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(self.seed)
        counts = (self.num_train, self.num_validation, self.num_test)
        train, validation, test = (self._draw(count, generator) for count in counts)
        return Splits(train=train, validation=validation, test=test)

    def _draw(self, count: int, generator: torch.Generator) -> InMemory:
        bits = torch.randint(2, (count, self.num_bits), generator=generator)
        return InMemory(inputs=bits[:, None].float(), targets=bits.cumsum(dim=1) % 2)
