"""ImageNet (ILSVRC 2012) as a tree of folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ..._internal.validation import check_choice, check_count
from ..tasks import Classification
from .dataset import AbstractDataConfig, Splits, hold_out
from .image_folder import ImageFolder, OnCorrupt
from .images import ImageTransform, Interpolation
from .locations import require
from .workers import Workers

FOLDER = "imagenet"


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
    """Training images set apart for validation; ImageNet's own validation images are the test split."""
    size: int = 224
    """Height and width of what the network sees."""
    resize: int = 256
    """Length of the shorter side before the center is cut out, for evaluation."""
    interpolation: Interpolation = "bilinear"
    """How images are resized."""
    num_workers: int = 8
    """Processes that decode images; 0 decodes in the main process."""
    on_corrupt: OnCorrupt = "raise"
    """Whether a damaged image is an error or replaced by another one of its class."""

    def __post_init__(self) -> None:
        check_count("num_validation", self.num_validation)
        check_count("num_workers", self.num_workers, minimum=0)
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        check_choice("on_corrupt", self.on_corrupt, get_args(OnCorrupt))
        self._transform()

    def load(self) -> Splits:
        """Return the data.

        Raises:
            InputError: The folders are missing, do not have the same classes, or have too few images.
        """
        root = require("imagenet", FOLDER)
        workers = Workers(self.num_workers)
        training = ImageFolder(root / "train", transform=self._transform(), workers=workers, on_corrupt=self.on_corrupt)
        test = ImageFolder(
            root / "val",
            transform=self._transform(),
            workers=workers,
            on_corrupt=self.on_corrupt,
            classes=training.classes,
        )
        rest, apart = hold_out(len(training), self.num_validation)
        return Splits(train=training.subset(rest), validation=training.subset(apart), test=test)

    def _transform(self) -> ImageTransform:
        return ImageTransform(size=self.size, resize=self.resize, interpolation=self.interpolation)
