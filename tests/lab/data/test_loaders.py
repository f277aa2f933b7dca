"""All data sets are torch data sets: a DataLoader reads them."""

import pytest
import torch
from lab.data.pictures import noise, write
from torch.utils.data import DataLoader

from steadeq.lab.data import (
    AbstractDataset,
    Digits,
    ImageFolder,
    ImageTransform,
    SegmentationPairs,
    SegmentationTransform,
    Text,
)


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
