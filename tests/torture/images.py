"""Images that are something else, pretend to be huge, or are damaged: an image or a sentence, and no other program."""

import io
import os
import struct
import warnings
import zlib
from pathlib import Path
from random import Random

from lab.data.damages import damaged
from lab.data.pictures import png_chunk
from PIL import Image
from torture.process import call, told

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "GIF", "TIFF", "ICO", "PCX", "TGA", "ICNS", "PDF", "EPS", "SGI", "IM")
SUFFIXES = (".png", ".jpeg", ".jpg", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")


def attempt(draw: Random, folder: Path) -> None:
    """Read a folder of classes with one hostile image."""
    (folder / "images" / "class").mkdir(parents=True)
    programs = folder / "programs"
    programs.mkdir()
    for name in ("gs", "gswin64c", "convert", "xv", "display", "djpeg"):
        # What Pillow may call for some formats.
        (programs / name).write_text(f"#!/bin/sh\ntouch {folder / 'canary'}\n")
        (programs / name).chmod(0o755)
    make = draw.choice((_other, _other, _bomb, _damaged, _damaged, _damaged, _nothing))
    (folder / "images" / "class" / f"0{draw.choice(SUFFIXES)}").write_bytes(make(draw))
    environment = {"PATH": f"{programs}:{os.environ.get('PATH', '')}"}
    outcome = call(_read, folder / "images", draw.random() < 0.5, folder=folder, environment=environment)
    outcome.check(0, 2, max_seconds=15, max_mb=1000)
    assert not (folder / "canary").exists(), "it started another program"


def _read(root: Path, is_random: bool) -> int:
    import torch

    from steadeq.lab.data import ImageFolder, ImageTransform

    def read() -> None:
        images = ImageFolder(root, transform=ImageTransform(size=8, resize=8))
        generator = torch.Generator().manual_seed(0) if is_random else None
        x, _ = images.batch(torch.tensor([0]), generator)
        assert x.shape == (1, 3, 8, 8)

    return told(read)


def _other(draw: Random) -> bytes:
    """An image in any format and mode."""
    image = Image.new(draw.choice(("RGB", "L", "P", "1", "CMYK", "RGBA")), (draw.randint(1, 40), draw.randint(1, 40)))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Pillow will not write all of them for ever.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            image.save(buffer, draw.choice(FORMATS))
        except (OSError, ValueError):
            image.convert("RGB").save(buffer, draw.choice(("EPS", "PNG")))
    return buffer.getvalue()


def _bomb(draw: Random) -> bytes:
    """A small file of a huge image."""
    width, height = draw.choice(((60_000, 60_000), (12_000, 12_000), (1, 2**30), (2**31 - 1, 2**31 - 1), (0, 5)))
    way = draw.randrange(4)
    if way == 0:
        return b"P6 %d %d 255\n" % (width, height) + bytes(100)
    if way == 1:
        return b"GIF89a" + struct.pack("<HHBBB", width & 0xFFFF, height & 0xFFFF, 0x80, 0, 0) + bytes(6) + b";"
    if way == 2:
        return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 200, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 1, 1, 0, 0)

    pixels = zlib.compress(bytes(50_000_000))
    texts = png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000))) if draw.random() < 0.3 else b""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + texts + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")


def _damaged(draw: Random) -> bytes:
    return damaged(_other(draw), draw)


def _nothing(draw: Random) -> bytes:
    return draw.choice((b"", b"\0" * 1000, draw.randbytes(1000), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"))
