"""Trees of image files: exact crops, honest errors, and the same batches from any number of processes."""

import contextlib
import logging
import os
import pickle
import random
import resource
import signal
import struct
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.data.damages import damaged as damaged_bytes
from lab.data.pictures import noise, png_chunk, write
from PIL import EpsImagePlugin, Image, PngImagePlugin

import steadeq
from steadeq.lab.data import ImageFolder, ImageNet, Imagenette64, ImageTransform
from steadeq.lab.data.image_folder import SUFFIXES
from steadeq.lab.data.images import MEAN, STD, CorruptImageError, decode_rgb
from steadeq.lab.errors import InputError

SMALL = ImageTransform(size=8, resize=8)


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


# What is found


def test_labels_are_the_places_of_sorted_classes(tmp_path):
    write(tmp_path, {"zebra": 2, "ant": 3, "Bee": 1})
    (tmp_path / "README").write_text("no class")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "ant" / "._000.png").write_text("left behind by macOS")
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    noise(7).save(tmp_path / "ant" / "one.JPEG", "JPEG")
    folder = ImageFolder(tmp_path, transform=SMALL)
    assert folder.classes == ("Bee", "ant", "zebra")
    assert folder.targets.tolist() == [0, 1, 1, 1, 1, 2, 2]
    assert folder.names[:2] + folder.names[4:5] == ["Bee/000.png", "ant/000.png", "ant/one.JPEG"]
    x, y = folder.batch(torch.tensor([6, 0, 1]))
    assert y.tolist() == [2, 0, 1]
    for image, seed in zip(x, (1, 200, 100), strict=True):
        expected = (as_tensor(noise(seed)) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        torch.testing.assert_close(image, expected)


def test_trees_without_what_is_needed_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"nowhere cannot be read: No such file"):
        ImageFolder(tmp_path / "nowhere")
    noise(0).save(tmp_path / "flat.png")
    with pytest.raises(InputError, match="no folders of classes"):
        ImageFolder(tmp_path)
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=r"no images .* in its 8 folders"):
        ImageFolder(tmp_path)
    noise(0).save(tmp_path / "d" / "0.png")
    with pytest.raises(InputError, match=r"classes without images: a, b, c, e, f and 2 more\.$"):
        ImageFolder(tmp_path)


def test_options_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'raise', 'skip'"):
        ImageFolder(tmp_path, on_corrupt="ignore")
    with pytest.raises(ValueError, match="num_workers is -1"):
        ImageFolder(tmp_path, workers=-1)
    with pytest.raises(ValueError, match="scale"):
        ImageTransform(scale=(0.5, 0.1))


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path, {"a": 1})
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image")
    with pytest.raises(InputError, match=r"pip install pillow"):
        ImageFolder(tmp_path)


# Crops


def test_the_center_is_cut_out_after_the_shorter_side_is_resized():
    image = noise(0, width=20, height=12)
    exact = ImageTransform(size=6, resize=12)(image, None)
    assert exact.tobytes() == image.crop((7, 3, 13, 9)).tobytes()
    # Twice the size: 40 by 24, as Pillow resizes.
    double = ImageTransform(size=10, resize=24, interpolation="bicubic")(image, None)
    assert double.tobytes() == image.resize((40, 24), Image.Resampling.BICUBIC).crop((15, 7, 25, 17)).tobytes()


def test_random_crops_have_the_stated_areas_and_ratios():
    width, height, size = 240, 160, 16
    y, x = np.mgrid[:height, :width]
    # Pixels say where they are, and means of pixels are in their middle.
    image = Image.fromarray(np.stack([x, y, 0 * x], axis=2).astype(np.uint8))
    transform = ImageTransform(size=size, resize=size, scale=(0.2, 0.6), ratio=(0.5, 2.0))
    areas, ratios, mirrors = [], [], 0
    for seed in range(300):
        result = as_tensor(transform(image, seed)).double()
        column, row = result[0].mean(dim=0), result[1].mean(dim=1)
        # Borders are left out, where resizing has fewer pixels to take a mean of.
        w, h = ((line[-3] - line[2]).item() * size / (size - 5) for line in (column, row))
        mirrors += w < 0
        areas.append(abs(w) * h / (width * height))
        ratios.append(abs(w) / h)
        assert 0 <= column.min() <= column.max() < width
    assert 0.19 < min(areas) < 0.23
    assert 0.52 < max(areas) < 0.62
    assert 0.48 < min(ratios) < 0.6
    assert 1.7 < max(ratios) < 2.1
    assert 120 < mirrors < 180
    assert transform(image, 5).tobytes() == transform(image, 5).tobytes()


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGBA", "CMYK", "I;16"])
def test_images_of_all_modes_become_color_images(mode, tmp_path):
    path = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    image = Image.new("L", (9, 9), 200) if mode != "I;16" else Image.new("I;16", (9, 9), 200)
    (image if mode == "I;16" else image.convert(mode)).save(path)
    result = decode_rgb(path)
    assert (result.mode, result.size) == ("RGB", (9, 9))
    if mode != "1":
        assert all(abs(value - 200) < 12 for value in result.getpixel((4, 4)))


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    image = noise(3).quantize(8)
    image.save(tmp_path / "image.png", transparency=bytes(range(8)))
    with Image.open(tmp_path / "image.png") as written:
        assert written.info["transparency"]
    assert decode_rgb(tmp_path / "image.png").tobytes() == image.convert("RGB").tobytes()


# Damaged images


@pytest.fixture
def damaged(tmp_path):
    """Two classes of five images, of which the second, third and last of class a are damaged."""
    write(tmp_path / "tree", {"a": 5, "b": 5}, suffix=".JPEG", width=40, height=40)
    whole = (tmp_path / "tree/a/001.JPEG").read_bytes()
    (tmp_path / "tree/a/001.JPEG").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "tree/a/002.JPEG").write_text("Not Found")
    (tmp_path / "tree/a/004.JPEG").write_bytes(b"")
    return tmp_path / "tree"


def test_a_damaged_image_is_refused_by_name(damaged):
    folder = ImageFolder(damaged, transform=SMALL)
    for row in (1, 2, 4):
        with pytest.raises(CorruptImageError, match=rf"tree/a/00{row}\.JPEG is damaged: .*[^.]\.$"):
            folder.batch(torch.tensor([0, row, 5]))


def test_a_damaged_image_is_replaced_by_the_next_of_its_class_and_named_once(damaged, caplog):
    folder = ImageFolder(damaged, transform=SMALL, on_corrupt="skip")
    with caplog.at_level(logging.WARNING):
        x, y = folder.batch(torch.arange(10))
        again, _ = folder.batch(torch.arange(10))
    assert torch.equal(x, again)
    assert y.tolist() == [0] * 5 + [1] * 5
    for row, other in ((1, 3), (2, 3), (4, 0)):
        assert torch.equal(x[row], x[other])
    assert len({image.numpy().tobytes() for image in x}) == 7
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    for row in (1, 2, 4):
        assert sum(f"a/00{row}.JPEG" in message for message in messages) == 1
    # Replacements come from the same part.
    x, y = folder.subset(torch.tensor([2, 0, 7, 1])).batch(torch.arange(4))
    assert y.tolist() == [0, 0, 1, 0]
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[3], x[1])
    with pytest.raises(InputError, match=r"No image of the class a in .* can be decoded"):
        folder.subset(torch.tensor([1, 2, 7])).batch(torch.arange(3))
    # A file that cannot be read is not skipped.
    (damaged / "b" / "003.JPEG").unlink()
    with pytest.raises(InputError, match=r"b/003\.JPEG cannot be read: No such file"):
        folder.batch(torch.tensor([8]))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(touched) print\n%%EOF\n"


def test_no_program_is_started_to_decode_an_image(tmp_path, monkeypatch):
    # Whatever a file is called, Pillow looks at its content, and hands some of what it knows to Ghostscript.
    trace, program = tmp_path / "trace", tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    (tmp_path / "image.png").write_bytes(EPS)
    with pytest.raises(CorruptImageError, match=r"image\.png is damaged: it is not a JPEG, PNG, .* or TIFF image\.$"):
        decode_rgb(tmp_path / "image.png")
    assert not trace.exists()
    # The file is as dangerous as it should be for this test to mean something.
    with contextlib.suppress(OSError), Image.open(tmp_path / "image.png") as image:
        image.load()
    assert trace.exists()


def bomb(width: int, height: int) -> bytes:
    """Return an image in black and white with the pixels of its first rows."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(bytes(10_000))) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height"), [(9_000, 9_000), (80_000_001, 1), (10_000, 10_000), (2**31 - 1, 2**31 - 1)]
)
def test_images_that_are_far_too_large_are_refused_before_they_are_decoded(width, height, tmp_path, monkeypatch):
    def load(image):
        raise AssertionError("It is decoded.")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", load)
    (tmp_path / "image.png").write_bytes(bomb(width, height))
    with pytest.raises(CorruptImageError, match=r"image\.png is (refused|damaged): .*pixels.*[^.]\.$"):
        decode_rgb(tmp_path / "image.png")


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1), (3, 70_000)])
def test_a_line_does_not_become_an_image_of_gigabytes(size):
    # Resized as a whole, it would have a billion pixels.
    transform = ImageTransform(size=224, resize=256)
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = transform(image, None)
    # In kilobytes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert result.size == (224, 224)
    # The middle of the gradient.
    assert all(120 < value < 136 for value in result.getpixel((112, 112)))
    # Shorter and smaller ones are cropped too, also at random.
    for small in (tuple(min(side, 400) for side in size), (1, 1)):
        assert all(SMALL(Image.new("RGB", small), seed).size == (8, 8) for seed in (None, *range(20)))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_image_of_every_suffix_is_decoded_or_whatever_the_damage_refused(suffix, tmp_path):
    path, rng = tmp_path / f"image{suffix}", random.Random(0)
    noise(0, width=16, height=12).save(path)
    assert decode_rgb(path).size == (16, 12)
    whole = path.read_bytes()
    for _ in range(60):
        path.write_bytes(damaged_bytes(whole, rng))
        with contextlib.suppress(CorruptImageError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert decode_rgb(path).mode == "RGB"


# Randomness and processes


def test_processes_change_no_batch_and_are_interrupted_and_killed_without_noise(damaged, capfd, caplog):
    alone, sender = (ImageFolder(damaged, transform=SMALL, on_corrupt="skip", workers=n) for n in (0, 2))
    shared = pickle.loads(pickle.dumps(sender))
    rows = torch.tensor([9, 0, 1, 5, 8, 2, 2])

    def check(seed=None):
        expected, actual = (
            folder.batch(rows, None if seed is None else torch.Generator().manual_seed(seed))
            for folder in (alone, shared)
        )
        assert all(map(torch.equal, expected, actual)), seed

    for seed in (None, 0, 1):
        check(seed)
    # The same image twice in a batch is cropped twice.
    x, _ = alone.batch(rows, torch.Generator().manual_seed(0))
    assert not torch.equal(x[-1], x[-2])
    pickle.dumps(shared)
    pids = list(shared.workers._executor._processes)
    # Ctrl-C in a terminal reaches the workers too.
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    check()
    assert list(shared.workers._executor._processes) == pids
    # This process does what the others no longer can.
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    check()
    assert "A worker process was killed" in caplog.text
    assert shared.workers._executor is None
    assert not any(map(is_running, pids))
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import os, signal, sys
import torch
from steadeq.lab.data import ImageFolder, ImageTransform

if __name__ == "__main__":
    shared = ImageFolder(sys.argv[1], transform=ImageTransform(size=8, resize=8), workers=2)
    shared.batch(torch.tensor([0, 3, 5, 6, 7]))
    print(*shared.workers._executor._processes, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def start(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "script.py").write_text(script)
    source = str(Path(steadeq.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(folder / "script.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["at the end", "killed"])
def test_processes_end_with_the_one_that_started_them(how, damaged, tmp_path):
    result = start(tmp_path, SCRIPT, str(damaged), how)
    if how == "at the end":
        assert (result.returncode, result.stderr) == (0, "")
    pids = [int(word) for word in result.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    # A process that has ended and that nobody has waited for has no command line any more.
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    write(tmp_path / "tree", {"a": 2})
    script = (
        "import sys, torch\n"
        "from steadeq.lab.data import ImageFolder, ImageTransform\n"
        "ImageFolder(sys.argv[1], transform=ImageTransform(size=8, resize=8), workers=1).batch(torch.arange(2))\n"
    )
    result = start(tmp_path, script, str(tmp_path / "tree"))
    assert result.returncode == 1
    assert "RunError" in result.stderr
    assert "__main__" in result.stderr.splitlines()[-1]


# ImageNet and Imagenette


def test_imagenet_reports_on_its_validation_images(home):
    write(home / "mine/imagenet/train", {"n01": 6, "n02": 6}, suffix=".JPEG", width=30, height=20)
    write(home / "mine/imagenet/val", {"n01": 2, "n02": 3}, suffix=".JPEG", width=20, height=30)
    splits = ImageNet(num_validation=4, size=8, resize=10, interpolation="bicubic", num_workers=0).load()
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [8, 4, 5]
    assert splits.test.root == home / "mine/imagenet/val"
    assert set(splits.train.names) | set(splits.validation.names) == {
        f"n0{c}/00{i}.JPEG" for c in (1, 2) for i in range(6)
    }
    assert splits.train.workers is splits.validation.workers is splits.test.workers
    x, y = splits.train.batch(torch.arange(8), torch.Generator().manual_seed(0))
    assert (x.shape, x.dtype, y.dtype) == ((8, 3, 8, 8), torch.float32, torch.int64)
    assert ImageNet(num_validation=4, num_workers=0).load().validation.names == splits.validation.names


def test_folders_of_imagenet_that_do_not_fit_are_explained(home):
    config = ImageNet(num_validation=4, num_workers=0)
    with pytest.raises(InputError, match="steadeq data imagenet"):
        config.load()
    write(home / "mine/imagenet/val", {"n02": 2, "n03": 2})
    with pytest.raises(InputError, match=r"imagenet/train cannot be read"):
        config.load()
    # Who only tests needs no training images.
    assert config.load_split("test").targets.tolist() == [0, 0, 1, 1]
    with pytest.raises(InputError, match="train"):
        config.load_split("validation")
    write(home / "mine/imagenet/train", {"n02": 2, "n03": 2})
    with pytest.raises(InputError, match=r"num_validation \(4\)"):
        config.load()
    (home / "mine/imagenet/train/n03").rename(home / "mine/imagenet/train/n01")
    with pytest.raises(InputError, match=r"imagenet/val differ from .* classes: it lacks n01 and has n03 too many"):
        ImageNet(num_validation=1, num_workers=0).load()


def test_imagenette_is_decoded_once_pixel_by_pixel(home):
    write(home / "mine/imagenette64/train", {"n01": 5, "n02": 4}, width=64, height=64)
    write(home / "mine/imagenette64/val", {"n01": 1, "n02": 2}, width=64, height=64)
    splits = Imagenette64(num_validation=3).load()
    assert splits.test.inputs.dtype == torch.uint8
    for image, seed in zip(splits.test.inputs, (0, 100, 101), strict=True):
        assert torch.equal(image, as_tensor(noise(seed, width=64, height=64)))
    assert splits.test.targets.tolist() == [0, 1, 1]
    assert len(splits.train) + len(splits.validation) == 9
    seen = torch.cat([splits.train.inputs, splits.validation.inputs]).flatten(1)
    assert len(torch.unique(seen, dim=0)) == 9
    x, _ = splits.train.batch(torch.arange(6), torch.Generator().manual_seed(0))
    assert (x.shape, x.dtype) == ((6, 3, 64, 64), torch.float32)
    assert len(Imagenette64(num_train=2, num_validation=3).load().train) == 2


def test_images_of_other_sizes_become_64_by_64_and_other_numbers_of_classes_are_refused(home):
    write(home / "mine/imagenette64/train", {"n00": 3}, width=100, height=80)
    write(home / "mine/imagenette64/val", {"n00": 1}, width=50, height=70)
    assert Imagenette64(num_validation=1).load().test.inputs.shape == (1, 3, 64, 64)
    for part in ("train", "val"):
        write(home / "mine/imagenette64" / part, {f"n{number:02d}": 1 for number in range(1, 11)})
    with pytest.raises(InputError, match=r"imagenette64/train has 11 folders of classes, and .* only 10 classes"):
        Imagenette64(num_validation=1).load()
