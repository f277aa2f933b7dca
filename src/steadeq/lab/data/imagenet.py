"""ImageNet (ILSVRC 2012) as a tree of folders, and Imagenette-64, ten easy classes of it in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ...checks import check_choice, check_count
from ..errors import InputError
from ..tasks import Classification
from .augmentation import Preparation
from .dataset import AbstractDataConfig, InMemory, MapDataset, Splits, hold_out
from .image_folder import ImageFolder, OnCorrupt
from .images import MEAN, STD, ImageTransform, Interpolation
from .locations import require
from .workers import Workers, check_workers


def check_num_classes(images: ImageFolder, most: int) -> None:
    """Refuse more classes than there are, whose labels no network has an output for."""
    if len(images.classes) > most:
        raise InputError(
            f"{images.root} has {len(images.classes)} folders of classes, and there are only {most} classes."
        )


@dataclass(frozen=True, kw_only=True)
class ImageNet(AbstractDataConfig):
    """1.28 million photographs in 1000 classes, in `imagenet/train/<class>` and `imagenet/val/<class>`.

    The labels of ImageNet's test images are not public, so that everybody reports on its 50,000 validation images:
    they are `test` here. To choose by, there is `validation`: training images that are set apart, a fixed random choice
    that is seen without augmentation.
    """

    name = "imagenet"
    task = Classification()

    num_validation: int = 10_000
    """Number of training images set apart for validation; with 0, training is evaluated on ImageNet's validation
    images, which are the test split."""
    size: int = 224
    """Height and width of the images that the network sees, in pixels."""
    resize: int = 256
    """Length to which the shorter side is resized before the center is cut out in evaluation, in pixels."""
    interpolation: Interpolation = "bilinear"
    """Interpolation with which images are resized."""
    num_workers: int = 8
    """Number of processes that decode images; 0 decodes in the main process."""
    on_corrupt: OnCorrupt = "raise"
    """Answer to a damaged image: "raise" stops with an error, "skip" takes another one of its class."""

    def __post_init__(self) -> None:
        check_count("num_validation", self.num_validation, minimum=0)
        check_workers(self.num_workers)
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        check_choice("on_corrupt", self.on_corrupt, get_args(OnCorrupt))
        self._transform()

    def load(self) -> Splits:
        open_folder, root = self._opener(), require(self.name)
        training = open_folder(root / "train")
        check_num_classes(training, 1000)
        test = open_folder(root / "val", classes=training.classes)
        if not self.num_validation:
            return Splits(train=training, validation=test, test=test)
        rest, apart = hold_out(len(training), self.num_validation)
        return Splits(train=training.subset(rest), validation=training.subset(apart), test=test)

    def load_split(self, split: Literal["train", "validation", "test"]) -> MapDataset:
        # Who only wants to test need not have the training images, which are twenty times as many.
        if split != "test":
            return super().load_split(split)
        test = self._opener()(require(self.name) / "val")
        check_num_classes(test, 1000)
        return test

    def _opener(self) -> Callable[..., ImageFolder]:
        return partial(
            ImageFolder, transform=self._transform(), workers=Workers(self.num_workers), on_corrupt=self.on_corrupt
        )

    def _transform(self) -> ImageTransform:
        return ImageTransform(size=self.size, resize=self.resize, interpolation=self.interpolation)


@dataclass(frozen=True, kw_only=True)
class Imagenette64(AbstractDataConfig):
    """Ten classes of ImageNet at 64 by 64 pixels, in `imagenette64/train/<class>` and `imagenette64/val/<class>`.

    As with ImageNet, the images in `val` are `test` here, and `validation` is a fixed random choice of training images
    that are set apart. All images are decoded once.
    """

    name = "imagenette64"
    task = Classification()

    num_train: int | None = None
    """Number of training images to use, a fixed random choice; None for all of them."""
    num_validation: int = 1_000
    """Number of training images set apart for validation."""
    augment: bool = True
    """Shift training images by up to 8 pixels and mirror them at random."""

    def __post_init__(self) -> None:
        if self.num_train is not None:
            check_count("num_train", self.num_train)
        check_count("num_validation", self.num_validation)

    def load(self) -> Splits:
        root = require(self.name)
        # Images of this size come through the transform as they are, and others fit.
        transform = ImageTransform(size=64, resize=64)
        training = ImageFolder(root / "train", transform=transform)
        check_num_classes(training, 10)
        test = ImageFolder(root / "val", transform=transform, classes=training.classes)
        rest, apart = hold_out(len(training), self.num_validation, num_train=self.num_train)
        prepare = Preparation(mean=MEAN, std=STD, padding=8 if self.augment else 0, mirror=self.augment)

        def decode(images: ImageFolder, indices: Tensor) -> InMemory:
            pixels, labels = images.pixels(indices)
            return InMemory(inputs=pixels, targets=labels, prepare=prepare)

        return Splits(
            train=decode(training, rest),
            validation=decode(training, apart),
            test=decode(test, torch.arange(len(test))),
        )
