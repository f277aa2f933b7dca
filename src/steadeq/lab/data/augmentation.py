"""Images in memory: batches are normalized and, to train on, shifted and mirrored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ...checks import check_count
from ..errors import InputError
from ..tasks import Classification
from .dataset import AbstractDataConfig, InMemory, Splits


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
        if generator is not None and (self.padding or self.mirror):
            # Before they are normalized: what is beyond the border is black, as in the official code.
            images = crop_and_flip(images, generator, padding=self.padding, mirror=self.mirror)
        return normalize(images, self.mean, self.std)


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (B, C, H, W) images of 0 to 255 as float32 with the given mean and deviation taken out."""
    center, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return (images.float() / 255 - center) / scale


def crop_and_flip(images: Tensor, generator: torch.Generator, *, padding: int = 4, mirror: bool = True) -> Tensor:
    """Shift each (C, H, W) image by up to `padding` pixels, with zeros beyond its border, and mirror half of them."""
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


@dataclass(frozen=True, kw_only=True)
class AbstractSmallImages(AbstractDataConfig):
    """Images to classify, all of one size, that are read at once; a subclass names the files."""

    task = Classification()
    num_published: ClassVar[int]
    """Number of training images of the whole data set."""
    mean: ClassVar[tuple[float, ...]]
    """Mean of each channel, for pixels between 0 and 1."""
    std: ClassVar[tuple[float, ...]]
    """Standard deviation of each channel."""
    padding: ClassVar[int]
    """Largest shift of an augmented image, in pixels."""

    num_train: int
    """Number of training images to use, from the first on."""
    num_validation: int = 5_000
    """Number of training images set apart for validation, from the last on; with 0, training is evaluated on the test
    images."""
    augment: bool = True
    """Shift training images by up to 4 pixels and mirror them at random."""

    def __post_init__(self) -> None:
        check_count("num_train", self.num_train)
        check_count("num_validation", self.num_validation, minimum=0)
        if self.num_train + self.num_validation > self.num_published:
            raise ValueError(
                f"num_train is {self.num_train}; with num_validation ({self.num_validation}), it must be at most "
                f"{self.num_published:,}."
            )

    @abstractmethod
    def read(self) -> tuple[Path, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the folder, and the uint8 images and the labels of all that is there to train and to test on."""

    def load(self) -> Splits:
        folder, (images, labels), (test_images, test_labels) = self.read()
        if self.num_train + self.num_validation > len(images):
            raise InputError(
                f"{folder} has {len(images)} training images, fewer than num_train ({self.num_train}) and "
                f"num_validation ({self.num_validation}) together."
            )
        padding = self.padding if self.augment else 0
        prepare = Preparation(mean=self.mean, std=self.std, padding=padding, mirror=self.augment)
        training = InMemory(inputs=images, targets=labels, prepare=prepare)
        test = InMemory(inputs=test_images, targets=test_labels, prepare=prepare)
        apart = training.subset(len(training) - self.num_validation, len(training))
        return Splits(train=training.subset(0, self.num_train), validation=apart if len(apart) else test, test=test)


def check_labels(labels: Sequence[int], path: Path) -> None:
    """Refuse a file with labels that are none of ten classes, or without any."""
    if not labels:
        raise InputError(f"{path} is damaged: it has no labels.")
    for label in (min(labels), max(labels)):
        if not 0 <= label <= 9:
            shown = str(label) if abs(label) < 2**63 else "a number beyond 64 bits"
            raise InputError(f"{path} is damaged: it has a label of {shown}, and those of ten classes are 0 to 9.")
