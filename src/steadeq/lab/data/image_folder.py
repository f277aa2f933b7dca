"""Images in one folder for each class, as ImageNet has them."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ...checks import check_choice
from ..errors import InputError
from .augmentation import normalize
from .dataset import AbstractDataset, digest
from .images import MEAN, STD, CorruptImageError, ImageTransform, decode_rgb, draw_seeds, require_pillow, to_tensor
from .workers import Workers

OnCorrupt = Literal["raise", "skip"]
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")

logger = logging.getLogger(__name__)


class ImageFolder(AbstractDataset):
    """The images `root/<class>/*.JPEG` (or .png, ...), decoded when they are asked for.

    The labels are the places of the classes in sorted order. With a generator, a batch is cropped at random, otherwise
    in the center. What is random has one seed for each image, so that the number of processes changes nothing.

    Args:
        root: The folder with the folders of the classes.
        transform: Sizes and crops.
        workers: Processes to share with other data sets, or a number of processes of its own; 0 decodes in this one.
        on_corrupt: What to do with an image that cannot be decoded: "raise" an error that names it, or "skip" it:
            it is named in the log once, and the next readable image of its class takes its place.
        classes: The classes that there must be, in sorted order; by default all that are found.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        transform: ImageTransform = ImageTransform(),  # noqa: B008 (frozen)
        workers: Workers | int = 0,
        on_corrupt: OnCorrupt = "raise",
        classes: Sequence[str] | None = None,
    ) -> None:
        require_pillow()
        check_choice("on_corrupt", on_corrupt, get_args(OnCorrupt))
        self.root, self.transform, self.on_corrupt = Path(root), transform, on_corrupt
        self.workers = Workers(workers) if isinstance(workers, int) else workers
        found = _scan(self.root)
        self.classes = tuple(found)
        _check_classes(self.root, self.classes, classes)
        self.names = [f"{label}/{name}" for label, names in found.items() for name in names]
        """Paths of the files below the root."""
        counts = torch.tensor([len(names) for names in found.values()])
        self.targets = torch.arange(len(counts)).repeat_interleave(counts)
        self._skipped: set[str] = set()

    def __len__(self) -> int:
        return len(self.names)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        images, targets = self.pixels(indices, generator)
        return normalize(images, MEAN, STD), targets

    def pixels(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the (B, 3, size, size) images of a batch as uint8, and their labels."""
        rows, seeds = indices.tolist(), draw_seeds(len(indices), generator)
        load = partial(_load, transform=self.transform)
        results = self.workers.map(load, [self._path(row) for row in rows], seeds)
        contents = [
            self._replace(row, seed, result) if isinstance(result, CorruptImageError) else result
            for row, seed, result in zip(rows, seeds, results, strict=True)
        ]
        return to_tensor(contents, self.transform.size, self.transform.size), self.targets[indices]

    def fingerprint(self) -> str:
        # By their names: looking into a million files would take longer than an epoch.
        return digest(*self.names, self.targets)

    def subset(self, indices: Tensor) -> ImageFolder:
        """Return some of the images, with the same classes and the same workers."""
        part = copy.copy(self)
        part.names, part.targets = [self.names[row] for row in indices.tolist()], self.targets[indices]
        return part

    def _path(self, row: int) -> str:
        return f"{self.root}/{self.names[row]}"

    def _replace(self, row: int, seed: int | None, problem: CorruptImageError) -> bytes:
        """Return the next readable image of a class, among those of this data set, instead of a damaged one."""
        if self.on_corrupt == "raise":
            raise problem
        same = (self.targets == self.targets[row]).nonzero().flatten().tolist()
        place = same.index(row)
        self._log(row, problem)
        for other in same[place + 1 :] + same[:place]:
            result = _load(self._path(other), seed, transform=self.transform)
            if isinstance(result, bytes):
                return result
            self._log(other, result)
        name = self.classes[int(self.targets[row])]
        raise InputError(f"No image of the class {name} in {self.root} can be decoded: {problem}")

    def _log(self, row: int, problem: CorruptImageError) -> None:
        if self.names[row] not in self._skipped:
            self._skipped.add(self.names[row])
            logger.warning("%s It is skipped.", problem)


def _load(path: str, seed: int | None, *, transform: ImageTransform) -> bytes | CorruptImageError:
    """Return pixels, row by row, with the channels last; as bytes, since tensors would travel in shared memory."""
    try:
        return transform(decode_rgb(path), seed).tobytes()
    except CorruptImageError as error:
        return CorruptImageError(str(error))


def _scan(root: Path) -> dict[str, list[str]]:
    """Return the names of the images of each class, all sorted."""
    try:
        with os.scandir(root) as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        found = {name: _images(root / name) for name in classes}
    except OSError as error:
        raise InputError(f"{error.filename or root} cannot be read: {error.strerror}.") from error
    if not found:
        raise InputError(f"{root} has no folders of classes: images must be in {root / '<class>'}.")
    empty = [name for name, names in found.items() if not names]
    if len(empty) == len(found):
        raise InputError(f"{root} has no images ({', '.join(SUFFIXES)}) in its {len(found)} folders of classes.")
    if empty:
        raise InputError(f"{root} has classes without images: {_some(empty)}.")
    return found


def _images(folder: Path) -> list[str]:
    # Names with a dot in front are what file managers and macOS leave behind.
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file()
        )


def _check_classes(root: Path, found: Sequence[str], wanted: Sequence[str] | None) -> None:
    if wanted is None or tuple(found) == tuple(wanted):
        return
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    parts = [f"lacks {_some(missing)}"] * bool(missing) + [f"has {_some(extra)} too many"] * bool(extra)
    raise InputError(f"The classes of {root} differ from the training classes: it {' and '.join(parts)}.")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
