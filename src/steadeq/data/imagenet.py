"""ImageNet (ILSVRC 2012) as a tree of folders."""

from __future__ import annotations

from .dataset import Splits, hold_out
from .image_folder import ImageFolder, OnCorrupt
from .images import ImageTransform, Interpolation
from .locations import require
from .workers import Workers

FOLDER = "imagenet"


def load(
    *,
    num_validation: int = 10_000,
    size: int = 224,
    resize: int = 256,
    interpolation: Interpolation = "bilinear",
    num_workers: int = 0,
    on_corrupt: OnCorrupt = "raise",
) -> Splits:
    """Return the images in `imagenet/train/<class>` and `imagenet/val/<class>`.

    The labels of ImageNet's test images are not public, so that everybody reports on its 50,000 validation images:
    they are `test` here. To choose by, there is `validation`: training images that are set apart, a fixed random choice
    that is seen without augmentation.

    Args:
        num_validation: How many training images to set apart.
        size: Side of what the network sees.
        resize: The shorter side before the center is cut out, for evaluation.
        interpolation: How images are resized.
        num_workers: Processes that decode; 0 for none beside this one.
        on_corrupt: Whether a damaged image is an error or replaced by another one of its class.

    Raises:
        InputError: The folders are missing, or do not have the same classes.
    """
    root = require("imagenet", FOLDER)
    transform = ImageTransform(size=size, resize=resize, interpolation=interpolation)
    workers = Workers(num_workers)
    training = ImageFolder(root / "train", transform=transform, workers=workers, on_corrupt=on_corrupt)
    test = ImageFolder(
        root / "val", transform=transform, workers=workers, on_corrupt=on_corrupt, classes=training.classes
    )
    rest, apart = hold_out(len(training), num_validation)
    return Splits(train=training.subset(rest), validation=training.subset(apart), test=test)
