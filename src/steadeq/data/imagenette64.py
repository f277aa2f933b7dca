"""Imagenette-64: ten easy classes of ImageNet at 64 by 64 pixels, in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .augmentation import Preparation
from .dataset import Dataset, Splits, hold_out
from .image_folder import ImageFolder
from .images import MEAN, STD, ImageTransform
from .locations import require

FOLDER = "imagenette64"
SIZE = 64


def load(*, num_train: int | None = None, num_validation: int = 1_000, augment: bool = True) -> Splits:
    """Return the images in `imagenette64/train/<class>` and `imagenette64/val/<class>`, decoded once.

    As with ImageNet, the images in `val` are `test` here, and `validation` is a fixed random choice of training images
    that are set apart.

    Args:
        num_train: How many of the other training images to use, a fixed random choice; by default all.
        num_validation: How many training images to set apart.
        augment: Whether to shift by up to 8 pixels and mirror when training.

    Raises:
        InputError: The folders are missing, do not have the same classes, or have a damaged image or too few.
    """
    root = require("imagenette64", FOLDER)
    prepare = Preparation(mean=MEAN, std=STD, padding=8 if augment else 0, mirror=augment)
    classes, images, labels = _decode(root / "train")
    rest, apart = hold_out(len(images), num_validation, num_train=num_train)
    _, test_images, test_labels = _decode(root / "val", classes)
    return Splits(
        train=Dataset(inputs=images[rest], targets=labels[rest], prepare=prepare),
        validation=Dataset(inputs=images[apart], targets=labels[apart], prepare=prepare),
        test=Dataset(inputs=test_images, targets=test_labels, prepare=prepare),
    )


def _decode(folder: Path, classes: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Return classes, uint8 images and labels."""
    # Images of this size come through the transform as they are, and others fit.
    images = ImageFolder(folder, transform=ImageTransform(size=SIZE, resize=SIZE), classes=classes)
    return images.classes, *images.pixels(torch.arange(len(images)))
