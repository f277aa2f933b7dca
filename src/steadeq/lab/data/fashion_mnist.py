"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from its idx files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..._internal.validation import check_count
from ..errors import InputError
from ..tasks import Classification
from . import idx
from .augmentation import Preparation
from .dataset import AbstractDataConfig, InMemory, Splits
from .locations import require

FOLDER = "fashion-mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist installs the files."""
NUM_TRAINING = 60_000
MEAN = (0.2860,)
STD = (0.3530,)
CHECKSUMS = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
"""MD5 checksums of the uncompressed files, as Debian compresses them anew."""


@dataclass(frozen=True, kw_only=True)
class FashionMnist(AbstractDataConfig):
    """Gray images of clothes, 28 by 28 pixels, in 10 classes."""

    name = "fashion-mnist"
    task = Classification()

    num_train: int = 55_000
    """Training images to use, from the first on."""
    num_validation: int = 5_000
    """Training images set apart for validation, from the last on."""
    augment: bool = True
    """Whether training images are shifted by up to 2 pixels and mirrored at random."""

    def __post_init__(self) -> None:
        check_count("num_train", self.num_train)
        check_count("num_validation", self.num_validation)
        if self.num_train + self.num_validation > NUM_TRAINING:
            raise ValueError(
                f"num_train is {self.num_train}; with num_validation ({self.num_validation}), it must be at most "
                f"{NUM_TRAINING:,}."
            )

    def load(self) -> Splits:
        """Return the data.

        Raises:
            InputError: The files are missing or damaged, or have fewer images.
        """
        folder = require(FOLDER, FOLDER, elsewhere=[DEBIAN])
        prepare = Preparation(mean=MEAN, std=STD, padding=2 if self.augment else 0, mirror=self.augment)
        images, labels = read(folder, "train")
        training = InMemory(inputs=images, targets=labels, prepare=prepare)
        if self.num_train + self.num_validation > len(training):
            raise InputError(
                f"{folder} has {len(training)} training images, fewer than num_train ({self.num_train}) and "
                f"num_validation ({self.num_validation}) together."
            )
        test_images, test_labels = read(folder, "t10k")
        return Splits(
            train=training.subset(0, self.num_train),
            validation=training.subset(len(training) - self.num_validation, len(training)),
            test=InMemory(inputs=test_images, targets=test_labels, prepare=prepare),
        )


def read(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Return the (N, 1, 28, 28) uint8 images and the labels of a part, "train" or "t10k".

    Raises:
        InputError: A file is missing or damaged, or images and labels do not belong together.
    """
    paths = [_path(folder, f"{part}-{name}-ubyte") for name in ("images-idx3", "labels-idx1")]
    images, labels = map(idx.read, paths)
    if images.dim() != 3 or images.shape[1:] != (28, 28) or images.element_size() != 1:
        raise InputError(f"{paths[0]} is damaged: it holds {tuple(images.shape)} instead of images of 28 by 28 bytes.")
    if labels.shape != images.shape[:1]:
        raise InputError(f"{paths[1]} is damaged: it has {tuple(labels.shape)} labels for {len(images)} images.")
    if len(labels) and int(labels.max()) > 9:
        raise InputError(f"{paths[1]} is damaged: it has a label of {int(labels.max())}, beyond 9.")
    return images[:, None], labels.long()


def _path(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.exists() else folder / name
