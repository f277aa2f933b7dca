"""Handwritten digits of 8 by 8 pixels, part of the package.

1797 digits written by 13 people: the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak, 1998, UCI Machine Learning Repository, CC BY 4.0, doi:10.24432/C50P49), in the order in which scikit-learn
ships it.
"""

from __future__ import annotations

import lzma
from importlib import resources

import torch
from torch import Tensor

from .dataset import Dataset, Splits

NUM_DIGITS = 1797
NUM_VALIDATION = 300
NUM_TEST = 300


def load() -> Splits:
    """Return 1197 digits to train on, 300 to validate and 300 to test.

    Pixels are counts from 0 to 16, scaled to about zero mean and unit variance. The split is a fixed shuffle: writers
    occur in all three parts.

    Example:
        >>> splits = load()
        >>> x, y = splits.train.batch(torch.tensor([0, 1]))
        >>> x.shape, y.dtype
        (torch.Size([2, 1, 8, 8]), torch.int64)
    """
    packed = resources.files("steadeq.data").joinpath("digits.bin.xz").read_bytes()
    content = torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.uint8)
    images = content[: NUM_DIGITS * 64].reshape(NUM_DIGITS, 1, 8, 8)
    labels = content[NUM_DIGITS * 64 :].long()
    order = torch.randperm(NUM_DIGITS, generator=torch.Generator().manual_seed(0))
    digits = Dataset(inputs=images[order], targets=labels[order], prepare=_scale)
    num_train = NUM_DIGITS - NUM_VALIDATION - NUM_TEST
    return Splits(
        train=digits.subset(0, num_train),
        validation=digits.subset(num_train, num_train + NUM_VALIDATION),
        test=digits.subset(num_train + NUM_VALIDATION, NUM_DIGITS),
    )


def _scale(images: Tensor, generator: torch.Generator | None) -> Tensor:
    # Mean and standard deviation of all pixels.
    return (images.float() - 4.9) / 6.0
