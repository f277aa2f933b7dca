"""Parities of prefixes of random bit strings, a task whose number of steps grows with the length of the string."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..tasks import Tagging
from .dataset import InMemory, check_limited
from .generated import AbstractGenerated


@dataclass(frozen=True, kw_only=True)
class PrefixSums(AbstractGenerated):
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
    num_bits: int = 16
    """Number of bits of each string."""

    def __post_init__(self) -> None:
        check_limited("num_bits", self.num_bits, maximum=100_000)
        super().__post_init__()

    def draw(self, count: int, generator: torch.Generator) -> InMemory:
        bits = torch.randint(2, (count, self.num_bits), generator=generator)
        return InMemory(inputs=bits[:, None].float(), targets=bits.cumsum(dim=1) % 2)
