"""Pairs of images and labels: they stay together whatever is done to them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from steadeq.lab.data import Cityscapes, SegmentationPairs, SegmentationTransform, cityscapes
from steadeq.lab.data.images import MEAN, STD
from steadeq.lab.errors import InputError

IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
HEIGHT, WIDTH = 40, 80
# Drawn at random, so that no mean of two colors is a third one.
COLORS = np.random.default_rng(0).integers(256, size=(34, 3), dtype=np.uint8)


def paths(root: Path, part: str, city: str, index: int) -> tuple[Path, Path]:
    stem = f"{city}_{index:06d}_000019"
    return (
        root / "leftImg8bit" / part / city / f"{stem}_leftImg8bit.png",
        root / "gtFine" / part / city / f"{stem}_gtFine_labelIds.png",
    )


def write(root: Path, part: str, city: str, index: int, size=(HEIGHT, WIDTH)) -> np.ndarray:
    """Write blocks of 10 by 10 pixels whose color tells their number; return the numbers."""
    rng = np.random.default_rng([index, ord(city[0])])
    blocks = rng.choice([*IDS, 0, 4], size=(size[0] // 10, size[1] // 10)).astype(np.uint8)
    numbers = blocks.repeat(10, 0).repeat(10, 1)
    image, labels = paths(root, part, city, index)
    for path in (image, labels):
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(COLORS[numbers]).save(image)
    Image.fromarray(numbers).save(labels)
    (labels.parent / labels.name.replace("labelIds", "instanceIds")).write_bytes(b"not read")
    return numbers


def classes_of(numbers: np.ndarray) -> torch.Tensor:
    return torch.tensor([[IDS.index(n) if n in IDS else 255 for n in row] for row in numbers.tolist()])


def numbers_in(x: torch.Tensor) -> torch.Tensor:
    """Return the number that each color of a normalized image tells, or -1 for mixed and black pixels."""
    color = (x * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255
    distance = (color[None] - torch.from_numpy(COLORS)[:, :, None, None]).abs().amax(dim=1)
    return torch.where(distance.amin(dim=0) < 0.5, distance.argmin(dim=0), -1)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path))
    for part, city in (("train", "aachen"), ("train", "bonn"), ("val", "lindau")):
        for index in range(3):
            write(tmp_path / "cityscapes", part, city, index)
    return tmp_path / "cityscapes"


def test_the_19_classes_are_those_of_the_benchmark():
    assert tuple(cityscapes.CLASSES.values()) == IDS
    assert list(cityscapes.CLASSES)[::9] == ["road", "terrain", "bicycle"]


def test_whole_pairs_are_read_pixel_by_pixel(root):
    splits = Cityscapes(num_validation=2, num_workers=0).load()
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [4, 2, 3]
    x, y = splits.test.batch(torch.tensor([2, 0]))
    assert (x.shape, y.shape, y.dtype) == ((2, 3, HEIGHT, WIDTH), (2, HEIGHT, WIDTH), torch.int64)
    for image, labels, index in zip(x, y, (2, 0), strict=True):
        numbers = write(root, "val", "lindau", index)
        assert np.array_equal(numbers_in(image).numpy(), numbers)
        assert torch.equal(labels, classes_of(numbers))
    assert int(y.max()) == 255
    parts = [{pair[0].name for pair in part.pairs} for part in (splits.train, splits.validation)]
    assert len(parts[0] | parts[1]) == 6


@pytest.mark.parametrize("scale", [(1.0, 1.0), (0.5, 2.0), (2.0, 2.0)])
@pytest.mark.parametrize("crop", [(30, 30), (100, 200), (30, 100)])
def test_images_and_labels_are_scaled_cropped_and_mirrored_together(scale, crop, root):
    training = Cityscapes(num_validation=1, crop=crop, scale=scale, num_workers=0).load().train
    x, y = training.batch(torch.arange(5).repeat(4), torch.Generator().manual_seed(0))
    assert x.shape == (20, 3, *crop)
    assert y.shape == (20, *crop)
    black = ((0 - torch.tensor(MEAN)) / torch.tensor(STD))[:, None, None]
    for image, labels in zip(x, y, strict=True):
        numbers = numbers_in(image)
        is_pure = numbers >= 0
        outside = ((image - black).abs() < 1e-5).all(dim=0)
        assert (labels[outside] == 255).all()
        if scale == (1.0, 1.0):
            assert (is_pure | outside).all()
        assert is_pure.sum() > 0.3 * (~outside).sum()
        assert torch.equal(labels[is_pure], classes_of(numbers[is_pure][None].numpy())[0])
    again, _ = training.batch(torch.arange(5).repeat(4), torch.Generator().manual_seed(0))
    assert torch.equal(x, again)
    assert not torch.equal(x[:5], x[5:10])


def test_half_of_the_pairs_are_mirrored():
    image = Image.fromarray(np.arange(16, dtype=np.uint8)[None, :, None].repeat(4, 0).repeat(3, 2))
    labels = image.getchannel(0)
    transform = SegmentationTransform(crop=(4, 16), scale=(1.0, 1.0))
    mirrored = 0
    for seed in range(200):
        x, y = transform(image, labels, seed)
        assert x.getchannel(0).tobytes() == y.tobytes()
        mirrored += y.getpixel((0, 0)) == 15
    assert 75 < mirrored < 125


def test_pairs_are_resized_for_evaluation_on_request(root):
    splits = Cityscapes(num_validation=1, evaluation_size=(20, 40), num_workers=0).load()
    x, y = splits.test.batch(torch.arange(3))
    assert (x.shape, y.shape) == ((3, 3, 20, 40), (3, 20, 40))
    # Blocks of 5 by 5 pixels.
    assert torch.equal(y[1], classes_of(write(root, "val", "lindau", 1)[::2, ::2]))


def test_a_missing_half_of_a_pair_or_all_of_them_are_named(root, tmp_path, monkeypatch):
    image, labels = paths(root, "train", "bonn", 1)
    kept = labels.read_bytes()
    labels.unlink()
    with pytest.raises(InputError, match=f"{image.name} has no labels: .*{labels.name} is missing"):
        Cityscapes(num_validation=1, num_workers=0).load()
    labels.write_bytes(kept)
    image.unlink()
    with pytest.raises(InputError, match=f"{labels.name} has no image: .*{image.name} is missing"):
        Cityscapes(num_validation=1, num_workers=0).load()
    (tmp_path / "other/cityscapes").mkdir(parents=True)
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"no images .*leftImg8bit/train/<city>"):
        Cityscapes(num_workers=0).load()


def test_pairs_that_do_not_fit_are_refused_by_name(root):
    image, labels = paths(root, "val", "lindau", 0)
    test = Cityscapes(num_validation=1, num_workers=0).load().test
    for content, problem in (
        (Image.new("L", (WIDTH, HEIGHT - 10), 7), rf"{labels.name} has \(80, 30\) pixels"),
        (Image.new("RGB", (WIDTH, HEIGHT)), rf"{labels.name} is not a map of labels: its mode is RGB"),
        (Image.new("L", (WIDTH, HEIGHT), 34), rf"{labels.name} is damaged: it has the label 34"),
    ):
        content.save(labels)
        with pytest.raises(InputError, match=problem):
            test.batch(torch.tensor([0]))
    Image.new("L", (WIDTH, HEIGHT), 255).save(labels)
    assert (test.batch(torch.tensor([0]))[1] == 255).all()
    truncated = image.read_bytes()[:60]
    for path in (labels, image):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(InputError, match=rf"{path.name} cannot be read: it is a pipe, not a file"):
            test.batch(torch.tensor([0]))
    image.unlink()
    image.write_bytes(truncated)
    with pytest.raises(InputError, match=rf"{image.name} is damaged"):
        test.batch(torch.tensor([0]))


def test_mappings_of_labels_that_make_no_sense_are_refused():
    for mapping in ([0, 1, 2], [0] * 257, [-1] + [0] * 255, [256] + [0] * 255):
        with pytest.raises(ValueError, match=r"^mapping must have a class from 0 to 255, or None, for each of the 256"):
            SegmentationPairs([], mapping=mapping)


def test_whole_images_of_different_sizes_make_no_batch(root):
    write(root, "val", "lindau", 2, size=(50, 80))
    with pytest.raises(InputError, match=r"000002.*50 by 80.*000000.*40 by 80.*evaluation_size"):
        Cityscapes(num_validation=1, num_workers=0).load().test.batch(torch.arange(3))
    x, _ = Cityscapes(num_validation=1, evaluation_size=(20, 40), num_workers=0).load().test.batch(torch.arange(3))
    assert x.shape == (3, 3, 20, 40)
