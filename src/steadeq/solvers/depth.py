"""Random depths: how many evaluations a training step may spend, drawn anew at each step.

A loop that is always trained to the same depth learns to be right there and nowhere else. A depth depends on the seed
and the step alone: it is the same on all processes and in a resumed run.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

from .._internal.validation import check_count, check_not_negative


@dataclass(frozen=True, kw_only=True)
class AbstractDepth(ABC):
    """A distribution of numbers of evaluations."""

    @abstractmethod
    def sample(self, rng: random.Random) -> int:
        """Return a number of evaluations, at least 1."""

    def draw(self, step: int, *, seed: int = 0) -> int:
        """Return the number of evaluations, at least 1, of a training step in a run with a seed."""
        return self.sample(random.Random(f"{seed}/depth/{step}"))


@dataclass(frozen=True, kw_only=True)
class UniformDepth(AbstractDepth):
    """A uniform distribution over the integers from `low` to `high`.

    Example:
        >>> [UniformDepth(low=4, high=8).draw(step) for step in range(6)]
        [8, 7, 4, 5, 4, 4]
    """

    low: int = 4
    """Smallest number of evaluations that is drawn."""
    high: int = 12
    """Largest number of evaluations that is drawn."""

    def __post_init__(self) -> None:
        check_count("low", self.low)
        check_count("high", self.high)
        if self.low > self.high:
            raise ValueError(f"low is {self.low}; it must be at most high ({self.high}).")

    def sample(self, rng: random.Random) -> int:
        """Return a number of evaluations."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class LogNormalDepth(AbstractDepth):
    """One plus a Poisson number whose rate is log-normal, the distribution that Huginn (2025) trains with.

    Most depths are below the mean, and a few far above it.

    Example:
        >>> [LogNormalDepth(mean=8).draw(step) for step in range(6)]
        [4, 2, 10, 8, 7, 11]
    """

    mean: float = 12.0
    """Mean number of evaluations that is drawn, at least 1."""
    sigma: float = 0.5
    """Spread of the draws: the standard deviation of the logarithm of their Poisson rate."""
    maximum: int = 1_000
    """Largest number of evaluations; draws above it are cut to it."""

    def __post_init__(self) -> None:
        if not (1 <= self.mean < math.inf):
            raise ValueError(f"mean is {self.mean!r}; it must be a finite number >= 1.")
        check_not_negative("sigma", self.sigma)
        check_count("maximum", self.maximum)

    def sample(self, rng: random.Random) -> int:
        """Return a number of evaluations."""
        rate = (self.mean - 1) * math.exp(self.sigma * rng.gauss(0, 1) - self.sigma**2 / 2)
        # A Poisson number: how many events, with exponential times between them, fall into a time of one.
        count, elapsed = 1, 0.0
        while rate > 0 and count < self.maximum:
            elapsed += rng.expovariate(rate)
            if elapsed > 1:
                break
            count += 1
        return count
