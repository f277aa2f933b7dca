"""Sums of two numbers, digit by digit: problems that are drawn from a seed, with carries that travel far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ..tasks import Tagging
from .dataset import InMemory, check_limited
from .generated import AbstractGenerated


@dataclass(frozen=True, kw_only=True)
class Addition(AbstractGenerated):
    """Pairs of numbers, the lowest digits first, and at each position the digit of their sum.

    A position is the token 10 a + b of two digits; one more at the end, of two zeros, takes the last carry. The digits
    of every second position, on average, add up to 9, which hands on the carry from before: with random digits hardly
    any would travel further than two positions, and depth would not pay.

    Example:
        >>> x, y = Addition(num_train=1, num_validation=1, num_test=1, num_digits=4).load().train[0]
        >>> x.tolist(), y.tolist()  # 394 + 3605 = 3999
        ([45, 90, 36, 3, 0], [9, 9, 9, 3, 0])
    """

    name = "addition"
    task = Tagging()

    num_train: int = 12_800
    num_digits: int = 15
    """Number of digits of both numbers; their sum has one more."""

    def __post_init__(self) -> None:
        check_limited("num_digits", self.num_digits, maximum=100_000)
        super().__post_init__()

    def draw(self, count: int, generator: torch.Generator) -> InMemory:
        first, second = torch.randint(10, (2, count, self.num_digits), generator=generator)
        hands_on = torch.randint(2, (count, self.num_digits), generator=generator).bool()
        second = torch.where(hands_on, 9 - first, second)
        sums = F.pad(first + second, (0, 1))
        carry = torch.zeros_like(sums[:, 0])
        for position in range(sums.shape[1]):
            sums[:, position] += carry
            carry = sums[:, position] // 10
        return InMemory(inputs=F.pad(10 * first + second, (0, 1)), targets=sums % 10)
