"""Data that is drawn from a seed: as many samples as are asked for, exact, and different in each split."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from .dataset import AbstractDataConfig, InMemory, Splits, check_limited, check_seed


@dataclass(frozen=True, kw_only=True)
class AbstractGenerated(AbstractDataConfig):
    """Samples that are drawn from a seed."""

    num_train: int
    """Number of samples to train on."""
    num_validation: int = 256
    """Number of samples to validate on."""
    num_test: int = 512
    """Number of samples to test on."""
    seed: int = 0
    """Seed of the random samples; those to train, validate and test on always differ."""

    def __post_init__(self) -> None:
        for name in ("num_train", "num_validation", "num_test"):
            check_limited(name, getattr(self, name), maximum=self.max_samples)
        check_seed("seed", self.seed)

    @property
    def max_samples(self) -> int:
        """The most samples of a split; more would use up the memory."""
        return 10_000_000

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> InMemory:
        """Return so many samples."""

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(self.seed)
        counts = (self.num_train, self.num_validation, self.num_test)
        train, validation, test = (self.draw(count, generator) for count in counts)
        return Splits(train=train, validation=validation, test=test)
