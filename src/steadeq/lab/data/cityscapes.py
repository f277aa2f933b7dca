"""Cityscapes (Cordts et al. 2016): street scenes with a class for each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...checks import check_count
from ..errors import InputError
from ..tasks import IGNORED, Segmentation
from .dataset import AbstractDataConfig, Splits, hold_out
from .locations import require
from .segmentation import SegmentationPairs, SegmentationTransform, Size
from .workers import Workers, check_workers

CLASSES = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
"""The 19 classes that count, in the order of their labels, with their numbers in the files."""
_LAST = 33
_IMAGE, _LABELS = "_leftImg8bit.png", "_gtFine_labelIds.png"


@dataclass(frozen=True, kw_only=True)
class Cityscapes(AbstractDataConfig):
    """Street scenes of 1024 by 2048 pixels with 19 classes of pixels.

    They are in `cityscapes/leftImg8bit/{train,val}` and `cityscapes/gtFine/{train,val}`. The labels of the test images
    are not public, so that results are reported on the 500 validation images: they are `test` here, and `validation` is
    a fixed random choice of training images that are set apart.
    """

    name = "cityscapes"
    task = Segmentation()

    num_validation: int = 275
    """Number of training images set apart for validation; the 500 official validation images are the test split."""
    crop: Size = (512, 1024)
    """Height and width of the crops that the network is trained on, in pixels."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Least and largest factor by which a training image is resized at random before it is cropped."""
    evaluation_size: Size | None = None
    """Height and width in pixels to which evaluation resizes images and labels; None leaves them whole, as published
    results do."""
    num_workers: int = 8
    """Number of processes that decode images; 0 decodes in the main process."""

    def __post_init__(self) -> None:
        check_count("num_validation", self.num_validation)
        check_workers(self.num_workers)
        self._transform()

    def load(self) -> Splits:
        root = require(self.name)
        transform, workers = self._transform(), Workers(self.num_workers)
        training, test = (
            SegmentationPairs(find_pairs(root, part), mapping=_mapping(), transform=transform, workers=workers)
            for part in ("train", "val")
        )
        rest, apart = hold_out(len(training), self.num_validation)
        return Splits(train=training.subset(rest), validation=training.subset(apart), test=test)

    def _transform(self) -> SegmentationTransform:
        return SegmentationTransform(crop=self.crop, scale=self.scale, evaluation_size=self.evaluation_size)


def find_pairs(root: Path, part: str) -> list[tuple[Path, Path]]:
    """Return the images of a part, "train" or "val", and their labels, sorted."""
    images, labels = root / "leftImg8bit" / part, root / "gtFine" / part
    expected = {
        path: labels / path.parent.name / (path.name.removesuffix(_IMAGE) + _LABELS)
        for path in sorted(images.glob(f"*/*{_IMAGE}"))
    }
    if not expected:
        raise InputError(f"There are no images {images / '<city>' / ('*' + _IMAGE)}.")
    present = set(labels.glob(f"*/*{_LABELS}"))
    for image, label in expected.items():
        if label not in present:
            raise InputError(f"{image} has no labels: {label} is missing.")
    alone = min(present - set(expected.values()), default=None)
    if alone is not None:
        image = images / alone.parent.name / (alone.name.removesuffix(_LABELS) + _IMAGE)
        raise InputError(f"{alone} has no image: {image} is missing.")
    return list(expected.items())


def _mapping() -> list[int | None]:
    """Return the label of each number in the files."""
    table: list[int | None] = [IGNORED if number <= _LAST else None for number in range(256)]
    # License plates have the number -1.
    table[255] = IGNORED
    for label, number in enumerate(CLASSES.values()):
        table[number] = label
    return table
