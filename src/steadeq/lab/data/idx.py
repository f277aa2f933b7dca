"""The idx format of MNIST and its relatives."""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError

_TYPES = {
    0x08: torch.uint8,
    0x09: torch.int8,
    0x0B: torch.int16,
    0x0C: torch.int32,
    0x0D: torch.float32,
    0x0E: torch.float64,
}


def read(path: Path) -> Tensor:
    """Return the array of an idx file, plain or compressed (.gz).

    Raises:
        InputError: The file is missing, truncated, longer than it says, or not in this format.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not magic[3]:
                raise InputError(f"{path} is damaged: it does not begin as an idx file does.")
            dtype, num_dims = _TYPES[magic[2]], magic[3]
            sizes = file.read(4 * num_dims)
            if len(sizes) < 4 * num_dims:
                raise InputError(f"{path} is damaged: it ends within its header.")
            shape = [int.from_bytes(sizes[4 * i : 4 * i + 4], "big") for i in range(num_dims)]
            num_bytes = math.prod(shape) * dtype.itemsize
            # One more byte than there should be, and never all that a compressed file may expand to.
            content = bytearray(file.read(num_bytes + 1))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None)
        problem = f"cannot be read: {reason}" if reason else f"is damaged: {error}"
        raise InputError(f"{path} {problem.removesuffix('.')}.") from error
    except (MemoryError, OverflowError):
        raise InputError(f"{path} is damaged: its header asks for an array that no memory holds.") from None
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
