"""The one-dimensional regression of the synthetic study (section 5.1, appendix A.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .dataset import Dataset, Splits

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
        x: Where.
        variant: The sign of 5x: minus in the main text of the paper, plus in its appendix.

    Example:
        >>> target(torch.tensor(0.0))
        tensor(-3.)
    """
    slope = {"main-text": -5.0, "appendix": 5.0}[variant]
    return 1.5 * x**3 + x**2 + slope * x + 2 * torch.sin(x) - 3


def generate(*, variant: Variant = "main-text", noise: float = NOISE, radius: float = RADIUS, seed: int = 0) -> Splits:
    """Draw 5096 noisy pairs (x, h(x)): 4096 to train on and 1000 to validate, plus 1000 to test.

    Args:
        variant: Which of the paper's two target functions.
        noise: Standard deviation of the noise on the targets.
        radius: Inputs are uniform on [-radius, radius].
        seed: Of inputs and noise.

    Example:
        >>> splits = generate()
        >>> len(splits.train), len(splits.validation)
        (4096, 1000)
    """
    generator = torch.Generator().manual_seed(seed)
    num_samples = NUM_TRAIN + 2 * NUM_VALIDATION
    x = (2 * torch.rand(num_samples, 1, generator=generator) - 1) * radius
    y = target(x, variant) + noise * torch.randn(num_samples, 1, generator=generator)
    samples = Dataset(inputs=x, targets=y)
    return Splits(
        train=samples.subset(0, NUM_TRAIN),
        validation=samples.subset(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION),
        test=samples.subset(NUM_TRAIN + NUM_VALIDATION, num_samples),
    )
