"""All data sets are torch data sets: a DataLoader reads them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from steadeq.lab.data import (
    AbstractDataset,
    Digits,
    ImageFolder,
    ImageTransform,
    SegmentationPairs,
    SegmentationTransform,
    Shapes,
    Synthetic,
    Text,
)


def image_folder(root):
    for name in ("a", "b"):
        (root / name).mkdir()
        for index in range(3):
            pixels = np.random.default_rng(index).integers(256, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return ImageFolder(root, transform=ImageTransform(size=8, resize=8))


def segmentation_pairs(root):
    pairs = []
    for index in range(6):
        pixels = np.random.default_rng(index).integers(3, size=(8, 8, 3), dtype=np.uint8)
        pairs.append((root / f"image{index}.png", root / f"labels{index}.png"))
        Image.fromarray(pixels).save(pairs[-1][0])
        Image.fromarray(pixels[:, :, 0]).save(pairs[-1][1])
    return SegmentationPairs(pairs, mapping=[0, 1, 2, *[None] * 253], transform=SegmentationTransform(crop=(4, 4)))


MAKERS = {
    "digits": lambda _: Digits().load().test,
    "synthetic": lambda _: Synthetic().load().validation,
    "shapes": lambda _: Shapes(num_train=6, num_validation=1, num_test=1, size=8).load().train,
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
