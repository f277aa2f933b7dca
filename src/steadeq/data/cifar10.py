"""CIFAR-10 (Krizhevsky 2009) from its official binary files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from .dataset import Dataset, Splits
from .locations import require

FOLDER = "cifar-10-batches-bin"
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)
_RECORD = 1 + 3 * 32 * 32


def load(*, num_train: int = 45_000, num_validation: int = 5_000) -> Splits:
    """Return CIFAR-10, with some of the training images set apart for validation.

    Args:
        num_train: How many of the training images to use, from the first on.
        num_validation: How many of the last training images to validate on.

    Raises:
        InputError: The files are missing or damaged, or have fewer images.
    """
    if num_train < 1 or num_validation < 1 or num_train + num_validation > 50_000:
        raise InputError(
            f"num_train ({num_train}) and num_validation ({num_validation}) must be positive, and at most 50,000 "
            "together."
        )
    folder = require("cifar10", FOLDER)
    images, labels = zip(*(read(folder / f"data_batch_{i}.bin") for i in range(1, 6)), strict=True)
    training = Dataset(inputs=torch.cat(images), targets=torch.cat(labels), prepare=_prepare)
    if num_train + num_validation > len(training):
        raise InputError(
            f"{folder} has {len(training)} training images, fewer than num_train ({num_train}) and num_validation "
            f"({num_validation}) together."
        )
    test_images, test_labels = read(folder / "test_batch.bin")
    return Splits(
        train=training.subset(0, num_train),
        validation=training.subset(len(training) - num_validation, len(training)),
        test=Dataset(inputs=test_images, targets=test_labels, prepare=_prepare),
    )


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Return the (N, 3, 32, 32) uint8 images and the labels of one file.

    Raises:
        InputError: The file is missing, truncated, or not in this format.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    if not content or len(content) % _RECORD:
        raise InputError(f"{path} is damaged: its size ({len(content)} bytes) is not a multiple of {_RECORD}.")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _RECORD)
    labels = records[:, 0].long()
    if int(labels.max()) > 9:
        raise InputError(f"{path} is damaged: it has a label of {int(labels.max())}, beyond 9.")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def _prepare(images: Tensor, generator: torch.Generator | None) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    images = (images.float() / 255 - mean) / std
    return images if generator is None else _crop_and_flip(images, generator)


def _crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift each image by up to `padding` pixels, with zeros beyond its border, and mirror half of them."""
    batch, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator)
    columns = torch.arange(width).expand(batch, width)
    flip = torch.rand(batch, 1, generator=generator) < 0.5
    columns = torch.where(flip, columns.flip(1), columns) + left
    rows = torch.arange(height) + top
    sample = torch.arange(batch)[:, None, None]
    # Indices around the slice put the channels last.
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
