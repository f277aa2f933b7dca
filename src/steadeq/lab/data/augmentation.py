"""Batches of images in memory, as a network takes them: normalized and, to train on, shifted and mirrored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Turns a batch of uint8 images into what a network takes, augmented if there is a generator.

    Example:
        >>> prepare = Preparation(mean=(0.5,), std=(0.5,))
        >>> prepare(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), None)
        tensor([[[[-1., 1.]]]])
    """

    mean: tuple[float, ...]
    """Mean of each channel, for pixels between 0 and 1."""
    std: tuple[float, ...]
    """Standard deviation of each channel."""
    padding: int = 0
    """Largest shift, in pixels."""
    mirror: bool = False
    """Whether to mirror half of the images."""

    def __call__(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return normalized images."""
        images = normalize(images, self.mean, self.std)
        if generator is None or not (self.padding or self.mirror):
            return images
        # Zeros beyond the border are the mean color, as the images are normalized.
        return crop_and_flip(images, generator, padding=self.padding, mirror=self.mirror)


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (B, C, H, W) images of 0 to 255 as float32 with the given mean and deviation taken out."""
    center, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return (images.float() / 255 - center) / scale


def crop_and_flip(images: Tensor, generator: torch.Generator, *, padding: int = 4, mirror: bool = True) -> Tensor:
    """Shift each image by up to `padding` pixels, with zeros beyond its border, and mirror half of them.

    Args:
        images: The (B, C, H, W) images.
        generator: Generator that decides all shifts and mirrors.
        padding: Largest shift in each direction.
        mirror: Whether to mirror at all.
    """
    batch, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator)
    columns = torch.arange(width).expand(batch, width)
    if mirror:
        is_mirrored = torch.rand(batch, 1, generator=generator) < 0.5
        columns = torch.where(is_mirrored, columns.flip(1), columns)
    columns = columns + left
    rows = torch.arange(height) + top
    sample = torch.arange(batch)[:, None, None]
    # Indices around the slice put the channels last.
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
