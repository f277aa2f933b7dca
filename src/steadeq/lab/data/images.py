"""Image files, decoded by Pillow, and the crops that classifiers train and are judged on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ..errors import InputError
from ..files import one_line, open_plain
from .dataset import check_limited

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["bilinear", "bicubic"]

MEAN = (0.485, 0.456, 0.406)
"""Mean of each channel of ImageNet's training images, by which images of its kind are normalized."""
STD = (0.229, 0.224, 0.225)
"""Standard deviation of each channel of ImageNet's training images."""
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "GIF", "TIFF")
"""The formats that are decoded. Pillow knows many more, among them one that it hands to Ghostscript, a program that
runs what is in the file, whatever its name ends in."""
MAX_PIXELS = 80_000_000
"""The largest image that is decoded, of 240 MB in RGB: a little below where Pillow itself begins to warn. An image of
Cityscapes has 2 million pixels."""
MAX_SIDE = 8192
"""The largest height or width of what images are cropped or resized to."""
_MAX_ASPECT = 64
"""How many times as long as wide an image may be before its ends are left out."""


class CorruptImageError(InputError):
    """A file is there, and its content is no image."""


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """Crops an image to a square: at random with a seed, in its center without one.

    At random: a part of random area and aspect ratio, resized, and mirrored half of the time (Szegedy et al. 2015).
    Otherwise: the shorter side is resized, and the center is cut out.
    """

    size: int = 224
    """Height and width of the square."""
    resize: int = 256
    """Length of the shorter side before the center is cut out."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Least and largest part of the area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and largest width over height."""
    interpolation: Interpolation = "bilinear"
    """How images are resized."""

    def __post_init__(self) -> None:
        check_limited("resize", self.resize, maximum=MAX_SIDE)
        if not 1 <= self.size <= self.resize:
            raise ValueError(f"size ({self.size}) must be at least 1 and at most resize ({self.resize}).")
        if not 0 < self.scale[0] <= self.scale[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(
                f"scale {self.scale} and ratio {self.ratio} must be positive and in order, scale at most 1."
            )

    def __call__(self, image: Image.Image, seed: int | None) -> Image.Image:
        """Return the square of an RGB image; the seed decides everything random, the same in every process."""
        return self._center(image) if seed is None else self._random(image, random.Random(seed))

    def _center(self, image: Image.Image) -> Image.Image:
        shorter = min(image.size)
        if max(image.size) > _MAX_ASPECT * shorter:
            # A line of 10,000 pixels would become an image of 650 million before its center is cut out.
            left, top = ((side - min(side, _MAX_ASPECT * shorter)) // 2 for side in image.size)
            image = image.crop((left, top, image.width - left, image.height - top))
        width, height = (self.resize * side // shorter for side in image.size)
        if image.size != (width, height):
            image = image.resize((width, height), self._filter)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))

    def _random(self, image: Image.Image, rng: random.Random) -> Image.Image:
        from PIL.Image import Transpose

        left, top, width, height = self._box(*image.size, rng)
        box = (left, top, left + width, top + height)
        result = image.resize((self.size, self.size), self._filter, box=box)
        return result.transpose(Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else result

    def _box(self, width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
        """Return left, top, width and height of a random part."""
        low, high = (math.log(value) for value in self.ratio)
        for _ in range(10):
            area = rng.uniform(*self.scale) * width * height
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return rng.randint(0, width - w), rng.randint(0, height - h), w, h
        # A long and narrow image: the largest part of an allowed ratio, in the center.
        w = max(1, min(width, round(height * self.ratio[1])))
        h = max(1, min(height, round(width / self.ratio[0])))
        return (width - w) // 2, (height - h) // 2, w, h

    @property
    def _filter(self) -> Image.Resampling:
        from PIL.Image import Resampling

        return {"bilinear": Resampling.BILINEAR, "bicubic": Resampling.BICUBIC}[self.interpolation]


def require_pillow() -> None:
    """Refuse to go on without Pillow."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise InputError("Reading image files needs Pillow: pip install pillow.") from error


def decode(path: Path | str) -> Image.Image:
    """Return an image file in its own mode.

    Raises:
        CorruptImageError: Its content is damaged, no image of the formats that are decoded, or too large.
    """
    return _decode(path, lambda image: image)


def _decode(path: Path | str, finish: Callable[[Image.Image], Image.Image]) -> Image.Image:
    require_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        with open_plain(path) as file, Image.open(file, formats=FORMATS) as image:
            # Only the header has been read.
            if image.width * image.height > MAX_PIXELS:
                raise CorruptImageError(
                    f"{path} is refused: it has {image.width:,} by {image.height:,} pixels, and the limit is "
                    f"{MAX_PIXELS:,}."
                )
            image.load()
            return finish(image)
    except (MemoryError, InputError):
        raise
    except UnidentifiedImageError as error:
        formats = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise CorruptImageError(f"{path} is damaged: it is not a {formats} image.") from error
    except Exception as error:
        # Only errors of the system have a number: a disk that fails says nothing about the image.
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        # Pillow's decoders raise many kinds of errors, from SyntaxError to struct.error.
        reason = one_line(error) or type(error).__name__
        raise CorruptImageError(f"{path} is damaged: {reason}.") from error


def decode_rgb(path: Path | str) -> Image.Image:
    """Return an image file in RGB, whatever its mode.

    Raises:
        CorruptImageError: Its content is damaged, no image of the formats that are decoded, or too large.
    """
    return _decode(path, _to_rgb)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "P" and "transparency" in image.info:
        # Otherwise Pillow warns: the colors of transparent pixels are kept this way too.
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def draw_seeds(count: int, generator: torch.Generator | None) -> list[int | None]:
    """Return a seed for each image of a batch, so that the number of processes changes nothing; None without any."""
    if generator is None:
        return [None] * count
    return torch.randint(2**62, (count,), generator=generator).tolist()


def to_tensor(contents: Iterable[bytes], height: int, width: int) -> Tensor:
    """Return (B, 3, H, W) uint8 images of the bytes of their pixels, which have the channels last."""
    pixels = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8)
    return pixels.reshape(-1, height, width, 3).permute(0, 3, 1, 2).contiguous()
