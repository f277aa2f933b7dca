"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from its idx files."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ..errors import InputError
from . import idx
from .augmentation import Preparation
from .dataset import Dataset, Splits
from .locations import require

FOLDER = "fashion-mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist installs the files."""
MEAN = (0.2860,)
STD = (0.3530,)
CHECKSUMS = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
"""MD5 of the files, uncompressed: Debian compresses them anew."""


def load(*, num_train: int = 55_000, num_validation: int = 5_000, augment: bool = True) -> Splits:
    """Return Fashion-MNIST, with some of the training images set apart for validation.

    Args:
        num_train: How many of the training images to use, from the first on.
        num_validation: How many of the last training images to validate on.
        augment: Whether to shift by up to 2 pixels and mirror when training.

    Raises:
        InputError: The files are missing or damaged, or have fewer images.
    """
    folder = require(FOLDER, FOLDER, elsewhere=[DEBIAN])
    prepare = Preparation(mean=MEAN, std=STD, padding=2 if augment else 0, mirror=augment)
    images, labels = read(folder, "train")
    if num_train < 1 or num_validation < 1 or num_train + num_validation > len(images):
        raise InputError(
            f"num_train ({num_train}) and num_validation ({num_validation}) must be positive, and together at most the "
            f"{len(images)} training images in {folder}."
        )
    training = Dataset(inputs=images, targets=labels, prepare=prepare)
    test_images, test_labels = read(folder, "t10k")
    return Splits(
        train=training.subset(0, num_train),
        validation=training.subset(len(training) - num_validation, len(training)),
        test=Dataset(inputs=test_images, targets=test_labels, prepare=prepare),
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
