"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from its idx files."""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..files import one_line, open_plain
from .augmentation import AbstractSmallImages, check_labels
from .locations import plain_or_packed, require

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist installs the files."""
CHECKSUMS = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
"""MD5 checksums of the uncompressed files, as Debian compresses them anew."""
_BLOCK = 1 << 20
_TYPES = {
    0x08: torch.uint8,
    0x09: torch.int8,
    0x0B: torch.int16,
    0x0C: torch.int32,
    0x0D: torch.float32,
    0x0E: torch.float64,
}
"""Types of numbers of the idx format, by the byte that stands for them."""
MAX_BYTES = 1 << 27
"""The largest array that is read, more than twice as large as the one of all training images."""


@dataclass(frozen=True, kw_only=True)
class FashionMnist(AbstractSmallImages):
    """Gray images of clothes, 28 by 28 pixels, in 10 classes."""

    name = "fashion-mnist"
    num_published = 60_000
    mean = (0.2860,)
    std = (0.3530,)
    padding = 2

    num_train: int = 55_000
    augment: bool = True
    """Shift training images by up to 2 pixels and mirror them at random."""

    def read(self) -> tuple[Path, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        folder = require(self.name, elsewhere=[DEBIAN])
        return folder, read_part(folder, "train"), read_part(folder, "t10k")


def read_part(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Return the (N, 1, 28, 28) uint8 images and the labels of a part, "train" or "t10k"."""
    paths = [plain_or_packed(folder / f"{part}-{name}-ubyte") for name in ("images-idx3", "labels-idx1")]
    images, labels = map(read_idx, paths)
    if images.dim() != 3 or images.shape[1:] != (28, 28) or images.dtype != torch.uint8:
        raise InputError(f"{paths[0]} is damaged: it holds {tuple(images.shape)} instead of images of 28 by 28 bytes.")
    if labels.shape != images.shape[:1] or labels.dtype != torch.uint8:
        raise InputError(
            f"{paths[1]} is damaged: it holds {tuple(labels.shape)} of {labels.dtype} instead of {len(images)} labels "
            "of one byte each."
        )
    check_labels(labels.tolist(), paths[1])
    return images[:, None], labels.long()


def read_idx(path: Path) -> Tensor:
    """Return the array of an idx file, plain or compressed (.gz)."""
    try:
        with open_plain(path) as plain, gzip.open(plain) if path.suffix == ".gz" else plain as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not magic[3]:
                raise InputError(f"{path} is damaged: it does not begin like an idx file.")
            dtype, num_dims = _TYPES[magic[2]], magic[3]
            sizes = file.read(4 * num_dims)
            if len(sizes) < 4 * num_dims:
                raise InputError(f"{path} is damaged: it ends within its header.")
            shape = [int.from_bytes(sizes[4 * i : 4 * i + 4], "big") for i in range(num_dims)]
            num_bytes = math.prod(shape) * dtype.itemsize
            # Sizes of which one is zero make an array of nothing, and still too large a one.
            if math.prod(size or 1 for size in shape) * dtype.itemsize > MAX_BYTES:
                raise InputError(f"{path} is damaged: its header asks for more than {MAX_BYTES:,} bytes, the limit.")
            content = bytearray()
            # One more byte than there should be, and never all that a compressed file may expand to.
            while block := file.read(min(_BLOCK, num_bytes + 1 - len(content))):
                content += block
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None)
        problem = f"cannot be read: {reason}" if reason else f"is damaged: {one_line(error)}"
        raise InputError(f"{path} {problem}.") from error
    if len(content) != num_bytes:
        size = f"only {len(content)}" if len(content) < num_bytes else "more"
        raise InputError(f"{path} is damaged: it should hold {num_bytes} bytes of data and has {size}.")
    if not num_bytes:
        return torch.empty(shape, dtype=dtype)
    # Numbers have their highest byte first.
    if sys.byteorder == "little" and dtype.itemsize > 1:
        content = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, dtype.itemsize).flip(1)
        return content.view(dtype).reshape(shape)
    return torch.frombuffer(content, dtype=dtype).reshape(shape)
