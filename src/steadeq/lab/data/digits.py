"""Handwritten digits of 8 by 8 pixels, part of the package.

1797 digits written by 13 people: the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak, 1998, UCI Machine Learning Repository, CC BY 4.0, doi:10.24432/C50P49), in the order in which scikit-learn
ships it.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from importlib import resources

import torch
from torch import Tensor

from ..tasks import Classification
from .dataset import AbstractDataConfig, InMemory, Splits

NUM_DIGITS = 1797
NUM_VALIDATION = 300
NUM_TEST = 300


@dataclass(frozen=True, kw_only=True)
class Digits(AbstractDataConfig):
    """1797 handwritten digits of 8 by 8 pixels.

    1197 of them are there to train on, 300 to validate and 300 to test. Pixels are counts from 0 to 16, scaled to about
    zero mean and unit variance. The split is a fixed shuffle: writers occur in all three parts.

    Example:
        >>> x, y = Digits().load().train[0]
        >>> x.shape, y.dtype
        (torch.Size([1, 8, 8]), torch.int64)
    """

    name = "digits"
    task = Classification()

    def load(self) -> Splits:
        packed = resources.files("steadeq.lab.data").joinpath("digits.bin.xz").read_bytes()
        content = torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.uint8)
        images = content[: NUM_DIGITS * 64].reshape(NUM_DIGITS, 1, 8, 8)
        labels = content[NUM_DIGITS * 64 :].long()
        order = torch.randperm(NUM_DIGITS, generator=torch.Generator().manual_seed(0))
        digits = InMemory(inputs=images[order], targets=labels[order], prepare=_scale)
        num_train = NUM_DIGITS - NUM_VALIDATION - NUM_TEST
        return Splits(
            train=digits.subset(0, num_train),
            validation=digits.subset(num_train, num_train + NUM_VALIDATION),
            test=digits.subset(num_train + NUM_VALIDATION, NUM_DIGITS),
        )


def _scale(images: Tensor, generator: torch.Generator | None) -> Tensor:
    # Mean and standard deviation of all pixels.
    return (images.float() - 4.9) / 6.0
