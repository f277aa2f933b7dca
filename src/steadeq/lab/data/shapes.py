"""Disks, squares and triangles: images to segment that are drawn from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..tasks import Segmentation
from .augmentation import Preparation
from .dataset import InMemory, check_limited
from .generated import AbstractGenerated

CLASSES = ("background", "disk", "square", "triangle")
"""The classes of pixels, in the order of their labels."""
MAX_SHAPES = 3
"""The most shapes of an image, where a later one may cover others; there is at least one."""
_MEAN, _STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
_CHUNK = 500
"""The most images that are drawn at once, to bound the memory; large ones are fewer."""
_MAX_PIXELS = 1 << 28
"""The most pixels of a split, of 3 GB with their labels."""
_MAX_SIZE = 1024


@dataclass(frozen=True, kw_only=True)
class Shapes(AbstractGenerated):
    """Images of overlapping disks, squares and triangles, of random colors, on a noisy background of random texture.

    Example:
        >>> x, y = Shapes(num_train=8, num_validation=2, num_test=2).load().train[0]
        >>> x.shape, y.shape, y.dtype
        (torch.Size([3, 32, 32]), torch.Size([32, 32]), torch.int64)
    """

    name = "shapes"
    task = Segmentation()

    num_train: int = 2_000
    num_validation: int = 500
    num_test: int = 500
    size: int = 32
    """Height and width of the images, in pixels."""

    def __post_init__(self) -> None:
        check_limited("size", self.size, minimum=8, maximum=_MAX_SIZE)
        super().__post_init__()

    @property
    def max_samples(self) -> int:
        return _MAX_PIXELS // self.size**2

    def draw(self, count: int, generator: torch.Generator) -> InMemory:
        most = min(_CHUNK, (1 << 22) // self.size**2)
        chunks = [min(most, count - begin) for begin in range(0, count, most)]
        images, labels = zip(*(draw(chunk, size=self.size, generator=generator) for chunk in chunks), strict=True)
        return InMemory(inputs=torch.cat(images), targets=torch.cat(labels), prepare=Preparation(mean=_MEAN, std=_STD))


def draw(count: int, *, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (count, 3, size, size) uint8 images and the (count, size, size) int64 labels of their pixels."""
    # A coarse random picture, enlarged, is a smooth texture.
    coarse = 0.3 + 0.4 * torch.rand(count, 3, 4, 4, generator=generator)
    images = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)
    labels = torch.zeros(count, size, size, dtype=torch.int64)
    # Centers of the pixels, between -1 and 1.
    grid = (2 * torch.arange(size) + 1) / size - 1
    num_shapes = torch.randint(1, MAX_SHAPES + 1, (count,), generator=generator)
    for layer in range(MAX_SHAPES):
        kind = torch.randint(1, len(CLASSES), (count,), generator=generator)
        center_y, center_x = 1.6 * torch.rand(2, count, 1, 1, generator=generator) - 0.8
        radius = 0.4 + 0.35 * torch.rand(count, 1, 1, generator=generator)
        angle = 2 * math.pi * torch.rand(count, 1, 1, generator=generator)
        # Each channel is dark or bright, which the background is not.
        color = 0.2 * torch.rand(count, 3, 1, 1, generator=generator)
        color = color + 0.8 * torch.randint(2, color.shape, generator=generator)
        y, x = grid[:, None] - center_y, grid - center_x
        covers = _covers(x, y, radius=radius, angle=angle, kind=kind) & (layer < num_shapes)[:, None, None]
        images = torch.where(covers[:, None], color, images)
        labels = torch.where(covers, kind[:, None, None], labels)
    images = images + 0.05 * torch.randn(images.shape, generator=generator)
    return (255 * images).round().clamp(0, 255).to(torch.uint8), labels


def _covers(x: Tensor, y: Tensor, *, radius: Tensor, angle: Tensor, kind: Tensor) -> Tensor:
    """Return which pixels, at x and y from its center, a shape covers; radius belongs to its circumscribed circle."""
    disk = x.square() + y.square() <= (0.8 * radius).square()

    def polygon(num_sides: int) -> Tensor:
        directions = [angle + 2 * math.pi * side / num_sides for side in range(num_sides)]
        height = radius * math.cos(math.pi / num_sides)
        return torch.stack([x * turn.cos() + y * turn.sin() <= height for turn in directions]).all(dim=0)

    # In the order of their labels.
    return torch.stack([disk, polygon(4), polygon(3)])[kind - 1, torch.arange(len(kind))]
