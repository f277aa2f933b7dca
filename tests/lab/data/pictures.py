"""Image files of noise, in one folder for each class."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def noise(seed: int, width: int = 8, height: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8))


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """Return a part of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def write(root: Path, counts: dict[str, int], suffix: str = ".png", **size: int) -> None:
    """Write so many images of each class, the first ones from the seeds 0, 100, 200 ..."""
    for label, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for index in range(count):
            noise(100 * label + index, **size).save(root / name / f"{index:03d}{suffix}")
