"""Pairs of an image and a map of labels, one label for each pixel."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..tasks import IGNORED
from .augmentation import normalize
from .dataset import AbstractDataset
from .images import MEAN, STD, decode, decode_rgb, require_pillow
from .workers import Workers

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, kw_only=True)
class SegmentationTransform:
    """Scales, crops and mirrors a pair at random with a seed; leaves it whole, or resizes it, without one."""

    crop: Size = (512, 1024)
    """Height and width of what is cut out of the scaled image; where that is smaller, pixels are black and ignored."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Least and largest scale."""
    mirror: bool = True
    """Whether half of the pairs are mirrored."""
    evaluation_size: Size | None = None
    """Height and width to which images and labels are resized for evaluation; None leaves them whole."""

    def __post_init__(self) -> None:
        if min(self.crop) < 1 or (self.evaluation_size is not None and min(self.evaluation_size) < 1):
            raise ValueError(f"crop {self.crop} and evaluation_size {self.evaluation_size} must be positive.")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale is {self.scale}; it must be positive and in order.")

    def __call__(self, image: Image.Image, labels: Image.Image, seed: int | None) -> tuple[Image.Image, Image.Image]:
        """Return the pair that a network sees."""
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
        canvases = (Image.new("RGB", whole), Image.new("L", whole, IGNORED))
        is_mirrored = rng.random() < 0.5 and self.mirror
        for canvas, part in zip(canvases, pair, strict=True):
            canvas.paste(part, (0, 0))
        if is_mirrored:
            image, labels = (canvas.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for canvas in canvases)
            return image, labels
        return canvases


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
        self.pairs, self.transform = list(pairs), transform
        self.workers = Workers(workers) if isinstance(workers, int) else workers
        self._table = bytes(IGNORED if label is None else label for label in mapping)
        self._allowed = bytes(byte for byte, label in enumerate(mapping) if label is not None)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pairs)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return (B, 3, H, W) normalized images and (B, H, W) labels.

        Raises:
            InputError: A file is damaged, a pair does not fit together, or whole images differ in size.
        """
        rows = indices.tolist()
        seeds = [None] * len(rows) if generator is None else torch.randint(2**62, (len(rows),), generator=generator)
        tasks = [
            _Task(
                *self.pairs[row],
                transform=self.transform,
                seed=None if seed is None else int(seed),
                table=self._table,
                allowed=self._allowed,
            )
            for row, seed in zip(rows, seeds, strict=True)
        ]
        images, labels, sizes = zip(*self.workers.map(_load, tasks), strict=True)
        for row, size in zip(rows, sizes, strict=True):
            if size != sizes[0]:
                raise InputError(
                    f"{self.pairs[row][0]} has {size[0]} by {size[1]} pixels and {self.pairs[rows[0]][0]} has "
                    f"{sizes[0][0]} by {sizes[0][1]}: whole images make a batch only if their sizes agree; "
                    "set evaluation_size."
                )
        x, y = (torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) for parts in (images, labels))
        x = x.reshape(-1, *sizes[0], 3).permute(0, 3, 1, 2).contiguous()
        return normalize(x, MEAN, STD), y.reshape(-1, *sizes[0]).long()

    def subset(self, indices: Tensor) -> SegmentationPairs:
        """Return some of the pairs, with the same workers."""
        part = copy.copy(self)
        part.pairs = [self.pairs[row] for row in indices.tolist()]
        return part


class _Task(NamedTuple):
    """What a process needs to know about a pair."""

    image: Path
    labels: Path
    transform: SegmentationTransform
    seed: int | None
    table: bytes
    allowed: bytes


def _load(task: _Task) -> tuple[bytes, bytes, Size]:
    """Return the bytes of the pixels and of the classes, and their height and width."""
    from PIL import Image

    image, labels = decode_rgb(task.image), decode(task.labels)
    # A palette is only there to look at: the bytes are the labels.
    if labels.mode not in ("L", "P"):
        raise InputError(f"{task.labels} is no map of labels: its mode is {labels.mode} instead of one byte a pixel.")
    if labels.size != image.size:
        raise InputError(f"{task.labels} has {labels.size} pixels, but its image {task.image} has {image.size}.")
    content = labels.tobytes()
    unknown = content.translate(None, delete=task.allowed)
    if unknown:
        raise InputError(f"{task.labels} is damaged: it has the label {unknown[0]}, which stands for nothing.")
    classes = Image.frombytes("L", labels.size, content.translate(task.table))
    image, classes = task.transform(image, classes, task.seed)
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
