"""Pairs of an image and a map of labels, one label for each pixel."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import InputError
from ..tasks import IGNORED
from .augmentation import normalize
from .dataset import AbstractDataset, digest
from .images import MAX_SIDE, MEAN, STD, decode, decode_rgb, draw_seeds, require_pillow, to_tensor
from .workers import Workers

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int]
"""Height and width."""
_MAX_SCALE = 100


@dataclass(frozen=True, kw_only=True)
class SegmentationTransform:
    """Scales and crops a pair, and mirrors half of them, with a seed; leaves it whole, or resizes it, without one."""

    crop: Size = (512, 1024)
    """Height and width of what is cut out of the scaled image; where that is smaller, pixels are black and ignored."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Least and largest scale."""
    evaluation_size: Size | None = None
    """Height and width to which images and labels are resized for evaluation; None leaves them whole."""

    def __post_init__(self) -> None:
        for name in ("crop", "evaluation_size"):
            size = getattr(self, name)
            if size is not None and not 1 <= min(size) <= max(size) <= MAX_SIDE:
                raise ValueError(f"{name} is {size}; both must be at least 1 and at most {MAX_SIDE}.")
        if not 0 < self.scale[0] <= self.scale[1] <= _MAX_SCALE:
            raise ValueError(f"scale is {self.scale}; it must be positive, in order, and at most {_MAX_SCALE}.")

    def __call__(self, image: Image.Image, labels: Image.Image, seed: int | None) -> tuple[Image.Image, Image.Image]:
        if seed is not None:
            return self._random(image, labels, random.Random(seed))
        if self.evaluation_size is None:
            return image, labels
        return _resize(image, labels, self.evaluation_size, (0, 0, *image.size))

    def _random(self, image: Image.Image, labels: Image.Image, rng: random.Random) -> tuple[Image.Image, Image.Image]:
        from PIL import Image

        scale = rng.uniform(*self.scale)
        # Only the part that is cut out is resized: at twice the size, an image of Cityscapes has 8 million pixels.
        (height, top, bottom), (width, left, right) = (
            _span(length, wanted, scale, rng) for length, wanted in zip(reversed(image.size), self.crop, strict=True)
        )
        pair = _resize(image, labels, (height, width), (left, top, right, bottom))
        whole = (self.crop[1], self.crop[0])
        image, labels = Image.new("RGB", whole), Image.new("L", whole, IGNORED)
        for canvas, part in zip((image, labels), pair, strict=True):
            canvas.paste(part, (0, 0))
        if rng.random() < 0.5:
            image, labels = (canvas.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for canvas in (image, labels))
        return image, labels


class SegmentationPairs(AbstractDataset):
    """Images and maps of labels, decoded when they are asked for.

    Args:
        pairs: Paths of images and of their labels, which are images of one byte for each pixel.
        mapping: The class of each of the 256 bytes; `None` for bytes that must not occur.
        transform: Sizes and crops.
        workers: Processes to share with other data sets, or a number of processes of its own; 0 decodes in this one.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Path, Path]],
        *,
        mapping: Sequence[int | None],
        transform: SegmentationTransform = SegmentationTransform(),  # noqa: B008 (frozen)
        workers: Workers | int = 0,
    ) -> None:
        require_pillow()
        if len(mapping) != 256 or not all(label is None or 0 <= label <= 255 for label in mapping):
            raise ValueError("mapping must have a class from 0 to 255, or None, for each of the 256 bytes.")
        self.pairs, self.transform = list(pairs), transform
        self.workers = Workers(workers) if isinstance(workers, int) else workers
        self._table = bytes(IGNORED if label is None else label for label in mapping)
        self._allowed = bytes(byte for byte, label in enumerate(mapping) if label is not None)

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        pairs = [self.pairs[row] for row in indices.tolist()]
        load = partial(_load, transform=self.transform, table=self._table, allowed=self._allowed)
        results = self.workers.map(load, pairs, draw_seeds(len(pairs), generator))
        images, labels, sizes = zip(*results, strict=True)
        for (path, _), size in zip(pairs, sizes, strict=True):
            if size != sizes[0]:
                raise InputError(
                    f"{path} has {size[0]} by {size[1]} pixels and {pairs[0][0]} has {sizes[0][0]} by {sizes[0][1]}: "
                    "images of different sizes do not fit into a batch; set evaluation_size."
                )
        y = torch.frombuffer(bytearray(b"".join(labels)), dtype=torch.uint8).reshape(-1, *sizes[0])
        return normalize(to_tensor(images, *sizes[0]), MEAN, STD), y.long()

    def fingerprint(self) -> str:
        return digest(*(path.name for pair in self.pairs for path in pair))

    def subset(self, indices: Tensor) -> SegmentationPairs:
        """Return some of the pairs, with the same workers."""
        part = copy.copy(self)
        part.pairs = [self.pairs[row] for row in indices.tolist()]
        return part


def _load(
    pair: tuple[Path, Path], seed: int | None, *, transform: SegmentationTransform, table: bytes, allowed: bytes
) -> tuple[bytes, bytes, Size]:
    """Return the bytes of the pixels and of the classes, and their height and width."""
    from PIL import Image

    path, labels_path = pair
    image, labels = decode_rgb(path), decode(labels_path)
    # A palette is only there to look at: the bytes are the labels.
    if labels.mode not in ("L", "P"):
        raise InputError(
            f"{labels_path} is not a map of labels: its mode is {labels.mode} instead of one byte per pixel."
        )
    if labels.size != image.size:
        raise InputError(f"{labels_path} has {labels.size} pixels, but its image {path} has {image.size}.")
    content = labels.tobytes()
    unknown = content.translate(None, delete=allowed)
    if unknown:
        raise InputError(f"{labels_path} is damaged: it has the label {unknown[0]}, which is not in the mapping.")
    classes = Image.frombytes("L", labels.size, content.translate(table))
    image, classes = transform(image, classes, seed)
    return image.tobytes(), classes.tobytes(), (image.height, image.width)


def _span(length: int, wanted: int, scale: float, rng: random.Random) -> tuple[int, float, float]:
    """Return how long a random part is after scaling, and where it begins and ends before."""
    scaled = max(1, round(length * scale))
    visible = min(scaled, wanted)
    begin = rng.randint(0, scaled - visible)
    return visible, begin * length / scaled, (begin + visible) * length / scaled


def _resize(
    image: Image.Image, labels: Image.Image, size: Size, box: tuple[float, float, float, float]
) -> tuple[Image.Image, Image.Image]:
    from PIL.Image import Resampling

    height, width = size
    # Labels are names, of which there are no means.
    return (
        image.resize((width, height), Resampling.BILINEAR, box=box),
        labels.resize((width, height), Resampling.NEAREST, box=box),
    )
