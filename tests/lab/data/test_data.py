"""Data: exact samples, honest errors."""

import math
import os
from functools import partial

import pytest
import torch
from lab.data.pictures import noise, write
from lab.data.published import write_cifar
from torch.utils.data import DataLoader

from steadeq.lab.data import (
    AbstractDataset,
    Cifar10,
    Digits,
    ImageFolder,
    ImageTransform,
    SegmentationPairs,
    SegmentationTransform,
    Synthetic,
    Text,
    search_path,
    synthetic,
)
from steadeq.lab.data.augmentation import crop_and_flip, normalize
from steadeq.lab.data.locations import find, require
from steadeq.lab.errors import InputError

# Digits


def all_digits():
    splits = Digits().load()
    parts = (splits.train, splits.validation, splits.test)
    return torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]), parts


def test_there_are_1797_digits_with_the_known_counts_in_splits_that_share_none():
    images, labels, parts = all_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (int(images.min()), int(images.max())) == (0, 16)
    rows = [{bytes(image.flatten().tolist()) for image in part.inputs} for part in parts]
    # No two of the 1797 images are the same, so that sets of images tell.
    assert [len(row) for row in rows] == [len(part) for part in parts] == [1197, 300, 300]
    assert len(set.union(*rows)) == 1797
    assert all(len(torch.unique(part.targets)) == 10 for part in parts)


def test_digits_are_scaled_and_the_split_is_fixed():
    first, second = Digits().load(), Digits().load()
    assert torch.equal(first.train.inputs, second.train.inputs)
    x, y = first.train.batch(torch.arange(1197))
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05


# The synthetic study


@pytest.mark.parametrize("variant", ["main-text", "appendix"])
def test_synthetic_data_is_the_target_plus_noise_of_the_stated_size(variant):
    splits = Synthetic(variant=variant).load()
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (4096, 1000, 1000)
    x = torch.cat([part.inputs for part in (splits.train, splits.validation, splits.test)]).double()
    y = torch.cat([part.targets for part in (splits.train, splits.validation, splits.test)]).double()
    sign = {"main-text": -1, "appendix": 1}[variant]
    noise = y - (1.5 * x**3 + x**2 + sign * 5 * x + 2 * torch.sin(x) - 3)
    count = len(x)
    assert abs(float(noise.mean())) < 4 * 0.05 / math.sqrt(count)
    assert float(noise.std()) == pytest.approx(0.05, rel=4 / math.sqrt(2 * count))
    # Uniform on [-1, 1].
    assert float(x.abs().max()) <= 1
    assert abs(float(x.mean())) < 4 / math.sqrt(3 * count)
    assert float(x.square().mean()) == pytest.approx(1 / 3, rel=0.05)
    # Noise and inputs have nothing to do with each other.
    assert abs(float((noise * x).mean())) < 4 * 0.05 / math.sqrt(3 * count)
    rows = [set(part.inputs.flatten().tolist()) for part in (splits.train, splits.validation, splits.test)]
    # Among 6096 float32 numbers a few pairs are equal by chance.
    assert sum(map(len, rows)) - len(set.union(*rows)) < 10


def test_synthetic_data_follows_its_options():
    quiet = Synthetic(noise=0.0, radius=2.5).load()
    x, y = quiet.train.batch(torch.arange(4096))
    torch.testing.assert_close(y, synthetic.target(x))
    assert 2.4 < float(x.abs().max()) <= 2.5
    assert torch.equal(Synthetic(seed=3).load().train.targets, Synthetic(seed=3).load().train.targets)
    assert not torch.equal(Synthetic(seed=3).load().train.targets, Synthetic(seed=4).load().train.targets)


# CIFAR-10


def test_cifar_is_read_pixel_by_pixel(home):
    content = write_cifar(home / "mine" / "cifar-10-batches-bin")
    splits = Cifar10(num_train=15, num_validation=5).load()
    images = torch.cat([content[f"data_batch_{i}"][0] for i in range(1, 6)])
    labels = torch.cat([content[f"data_batch_{i}"][1] for i in range(1, 6)])
    assert torch.equal(splits.train.inputs, images[:15])
    assert torch.equal(splits.train.targets, labels[:15])
    assert torch.equal(splits.validation.inputs, images[15:])
    assert torch.equal(splits.validation.targets, labels[15:])
    assert torch.equal(splits.test.inputs, content["test_batch"][0])
    x, y = splits.test.batch(torch.tensor([2, 0]))
    for channel, (mean, std) in enumerate(zip(Cifar10.mean, Cifar10.std, strict=True)):
        expected = (content["test_batch"][0][[2, 0], channel].float() / 255 - mean) / std
        torch.testing.assert_close(x[:, channel], expected)
    assert y.tolist() == content["test_batch"][1][[2, 0]].tolist()
    # Without validation images, those to test on are evaluated during training.
    splits = Cifar10(num_train=20, num_validation=0).load()
    assert len(splits.train) == 20
    assert splits.validation is splits.test
    # The files hold 20 images to train on: fewer than are asked for.
    with pytest.raises(InputError, match="20"):
        Cifar10(num_train=18, num_validation=5).load()


def impossible_label(path):
    content = bytearray(path.read_bytes())
    content[3073] = 10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        *(("data_batch_3", partial(os.truncate, length=size), "is damaged") for size in (0, 3072, 3073 * 4 - 1)),
        ("data_batch_5", os.remove, "cannot be read: No such file"),
        (
            "data_batch_1",
            partial(os.truncate, length=3073 << 30),
            r"is refused: it has 3,299,[\d,]+ bytes, and the limit is",
        ),
        ("test_batch", impossible_label, "is damaged.* 10"),
    ],
)
def test_files_of_cifar_that_are_not_right_are_refused_by_name(name, damage, problem, home):
    write_cifar(home / "mine" / "cifar-10-batches-bin")
    damage(home / "mine" / "cifar-10-batches-bin" / f"{name}.bin")
    with pytest.raises(InputError, match=rf"{name}\.bin {problem}"):
        Cifar10(num_train=10, num_validation=5).load()


def test_augmentation_is_a_shift_and_a_mirror_of_what_is_not_yet_normalized(home):
    content = write_cifar(home / "mine" / "cifar-10-batches-bin", per_file=40)
    images = torch.cat([content[f"data_batch_{i}"][0] for i in range(1, 6)])[:100]
    training = Cifar10(num_train=100, num_validation=50).load().train
    augmented, _ = training.batch(torch.arange(100), torch.Generator().manual_seed(5))
    # The border is black. What shifts and mirrors there are is tested in test_augmentation.py.
    expected = crop_and_flip(images, torch.Generator().manual_seed(5), padding=4, mirror=True)
    assert torch.equal(augmented, normalize(expected, Cifar10.mean, Cifar10.std))


# Where data is looked for


def test_folders_are_searched_in_order(home, monkeypatch):
    places = [home / "mine", home / "data", home / "cache" / "steadeq"]
    assert [path.resolve() for path in search_path()] == places
    assert find("corpus") is None
    with pytest.raises(InputError, match="corpus-bin or corpus-py") as error:
        require("corpus", "corpus-bin", "corpus-py")
    for word in (str(places[0]), "data", str(places[2]), "STEADEQ_DATA"):
        assert word in str(error.value)
    for place in reversed(search_path()):
        (place / "corpus").mkdir(parents=True)
        assert find("corpus") == place / "corpus"
    assert require("corpus", "other", "corpus") == home / "mine" / "corpus"
    monkeypatch.delenv("STEADEQ_DATA")
    assert [path.resolve() for path in search_path()] == places[1:]


# All data sets are torch data sets: a DataLoader reads them


def image_folder(root):
    write(root, {"a": 3, "b": 3})
    return ImageFolder(root, transform=ImageTransform(size=8, resize=8))


def segmentation_pairs(root):
    pairs = [(root / f"image{index}.png", root / f"labels{index}.png") for index in range(6)]
    for index, (image, labels) in enumerate(pairs):
        noise(index).save(image)
        noise(index).getchannel(0).save(labels)
    return SegmentationPairs(pairs, mapping=list(range(256)), transform=SegmentationTransform(crop=(4, 4)))


MAKERS = {
    "in memory": lambda _: Digits().load().test,
    "text": lambda _: Text(tokens=torch.arange(40), length=6),
    "image folder": image_folder,
    "segmentation pairs": segmentation_pairs,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_loader_reads_what_batch_returns(kind, tmp_path):
    dataset = MAKERS[kind](tmp_path)
    assert isinstance(dataset, AbstractDataset)
    x, y = next(iter(DataLoader(dataset, batch_size=4)))
    expected_x, expected_y = dataset.batch(torch.arange(4))
    assert torch.equal(x, expected_x)
    assert torch.equal(y, expected_y)
    assert sum(len(y) for _, y in DataLoader(dataset, batch_size=4)) == len(dataset)
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    assert torch.equal(dataset[-1][0], dataset[len(dataset) - 1][0])
