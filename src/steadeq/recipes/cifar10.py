"""CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass

from .. import data
from ..train import AbstractDataConfig, Classification


@dataclass(frozen=True, kw_only=True)
class Cifar10Data(AbstractDataConfig):
    """Color images of 32 by 32 pixels in 10 classes."""

    name = "cifar10"
    task = Classification()

    num_train: int = 45_000
    """Training images to use, from the first on."""
    num_validation: int = 5_000
    """Training images set apart for validation, from the last on."""
    augment: bool = True
    """Whether training images are shifted and mirrored at random."""

    def load(self) -> data.Splits:
        """Return the data."""
        return data.cifar10.load(num_train=self.num_train, num_validation=self.num_validation, augment=self.augment)
