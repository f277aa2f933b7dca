"""The one-dimensional regression of the synthetic study (section 5.1, appendix A.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ...checks import check_choice, check_not_negative, check_positive
from ..tasks import Regression
from .dataset import AbstractDataConfig, InMemory, Splits, check_seed

NUM_TRAIN = 4096
NUM_VALIDATION = 1000
NOISE = 0.05
"""Standard deviation of the noise. Paper: "N(0, 0.05)", which may also be a variance."""
RADIUS = 1.0
"""Inputs are uniform on [-RADIUS, RADIUS]. Paper: does not say."""

Variant = Literal["main-text", "appendix"]


def target(x: Tensor, variant: Variant = "main-text") -> Tensor:
    """Return h(x) = 3/2 x³ + x² ∓ 5x + 2 sin(x) - 3.

    Args:
        x: The inputs.
        variant: The sign of 5x: minus in the main text of the paper, plus in its appendix.

    Example:
        >>> target(torch.tensor(0.0))
        tensor(-3.)
    """
    slope = {"main-text": -5.0, "appendix": 5.0}[variant]
    return 1.5 * x**3 + x**2 + slope * x + 2 * torch.sin(x) - 3


@dataclass(frozen=True, kw_only=True)
class Synthetic(AbstractDataConfig):
    """Noisy values of a cubic with a wave: 4096 to train on, 1000 to validate and 1000 to test.

    Example:
        >>> splits = Synthetic().load()
        >>> len(splits.train), len(splits.validation)
        (4096, 1000)
    """

    name = "synthetic"
    task = Regression()

    variant: Variant = "main-text"
    """Function of the paper to learn: with -5x as in its main text, or with +5x as in its appendix."""
    noise: float = NOISE
    """Standard deviation of the noise that is added to the targets."""
    radius: float = RADIUS
    """Largest size of the inputs x, which are uniform on [-radius, radius]."""
    seed: int = 0
    """Seed of the random inputs and of the noise."""

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, get_args(Variant))
        check_not_negative("noise", self.noise)
        check_positive("radius", self.radius)
        for name in ("noise", "radius"):
            # Its cube is still a number of float32.
            if getattr(self, name) > 1e6:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at most 1e6.")
        check_seed("seed", self.seed)

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(self.seed)
        num_samples = NUM_TRAIN + 2 * NUM_VALIDATION
        x = (2 * torch.rand(num_samples, 1, generator=generator) - 1) * self.radius
        y = target(x, self.variant) + self.noise * torch.randn(num_samples, 1, generator=generator)
        samples = InMemory(inputs=x, targets=y)
        return Splits(
            train=samples.subset(0, NUM_TRAIN),
            validation=samples.subset(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION),
            test=samples.subset(NUM_TRAIN + NUM_VALIDATION, num_samples),
        )
