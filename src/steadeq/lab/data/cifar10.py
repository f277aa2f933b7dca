"""CIFAR-10 (Krizhevsky 2009) from its official files, binary or pickled."""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..files import one_line, read_plain
from .augmentation import AbstractSmallImages, check_labels
from .locations import require

FOLDER = "cifar-10-batches-bin"
PICKLED_FOLDER = "cifar-10-batches-py"
CHECKSUMS = {
    FOLDER: {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    PICKLED_FOLDER: {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
}
"""MD5 checksums of the official files of each layout."""
_RECORD = 1 + 3 * 32 * 32
_MAX_BYTES = 20_000 * _RECORD
"""The largest file that is read, twice as large as the official ones."""


@dataclass(frozen=True, kw_only=True)
class Cifar10(AbstractSmallImages):
    """Color images of 32 by 32 pixels in 10 classes."""

    name = "cifar10"
    num_published = 50_000
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)
    padding = 4

    num_train: int = 45_000
    augment: bool = True
    """Whether training images are shifted by up to 4 pixels and mirrored at random."""

    def read(self) -> tuple[Path, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        folder = require(self.name, FOLDER, PICKLED_FOLDER)
        reader, suffix = (read_pickled, "") if folder.name == PICKLED_FOLDER else (read_binary, ".bin")
        images, labels = zip(*(reader(folder / f"data_batch_{i}{suffix}") for i in range(1, 6)), strict=True)
        return folder, (torch.cat(images), torch.cat(labels)), reader(folder / f"test_batch{suffix}")


def read_binary(path: Path) -> tuple[Tensor, Tensor]:
    """Return the (N, 3, 32, 32) uint8 images and the labels of one binary file."""
    content = read_plain(path, max_bytes=_MAX_BYTES)
    if not content or len(content) % _RECORD:
        raise InputError(f"{path} is damaged: its size ({len(content)} bytes) is not a multiple of {_RECORD}.")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _RECORD)
    labels = records[:, 0].long()
    check_labels(labels.tolist(), path)
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def read_pickled(path: Path) -> tuple[Tensor, Tensor]:
    """Return the (N, 3, 32, 32) uint8 images and the labels of one pickled file, which must be the published one."""
    content = read_plain(path, max_bytes=_MAX_BYTES)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != CHECKSUMS[PICKLED_FOLDER].get(path.name):
        raise InputError(
            f"{path} is refused: it is not the published file (by MD5), and no other pickle is read; get it again, or "
            "the binary version."
        )
    try:
        found = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} is refused: {error}.") from error
    return torch.from_numpy(found[b"data"]).reshape(-1, 3, 32, 32), torch.tensor(found[b"labels"])


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the three names that arrays need, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {one_line(f'{module}.{name}')}, which no file of data needs")
        return super().find_class(module, name)


_NAMES = (("numpy", "ndarray"), ("numpy", "dtype"), ("numpy.core.multiarray", "_reconstruct"))
