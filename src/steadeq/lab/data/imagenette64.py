"""Imagenette-64: ten easy classes of ImageNet at 64 by 64 pixels, in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..._internal.validation import check_count
from ..tasks import Classification
from .augmentation import Preparation
from .dataset import AbstractDataConfig, InMemory, Splits, hold_out
from .image_folder import ImageFolder
from .images import MEAN, STD, ImageTransform
from .locations import require

FOLDER = "imagenette64"
SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Imagenette64(AbstractDataConfig):
    """Ten classes of ImageNet at 64 by 64 pixels, in `imagenette64/train/<class>` and `imagenette64/val/<class>`.

    As with ImageNet, the images in `val` are `test` here, and `validation` is a fixed random choice of training images
    that are set apart. All images are decoded once.
    """

    name = "imagenette64"
    task = Classification()

    num_train: int | None = None
    """Training images to use, a fixed random choice; all if not given."""
    num_validation: int = 1_000
    """Training images set apart for validation."""
    augment: bool = True
    """Whether training images are shifted by up to 8 pixels and mirrored at random."""

    def __post_init__(self) -> None:
        if self.num_train is not None:
            check_count("num_train", self.num_train)
        check_count("num_validation", self.num_validation)

    def load(self) -> Splits:
        """Return the data.

        Raises:
            InputError: The folders are missing, do not have the same classes, or have a damaged image or too few.
        """
        root = require("imagenette64", FOLDER)
        prepare = Preparation(mean=MEAN, std=STD, padding=8 if self.augment else 0, mirror=self.augment)
        classes, images, labels = _decode(root / "train")
        rest, apart = hold_out(len(images), self.num_validation, num_train=self.num_train)
        _, test_images, test_labels = _decode(root / "val", classes)
        return Splits(
            train=InMemory(inputs=images[rest], targets=labels[rest], prepare=prepare),
            validation=InMemory(inputs=images[apart], targets=labels[apart], prepare=prepare),
            test=InMemory(inputs=test_images, targets=test_labels, prepare=prepare),
        )


def _decode(folder: Path, classes: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Return classes, uint8 images and labels."""
    # Images of this size come through the transform as they are, and others fit.
    images = ImageFolder(folder, transform=ImageTransform(size=SIZE, resize=SIZE), classes=classes)
    return images.classes, *images.pixels(torch.arange(len(images)))
