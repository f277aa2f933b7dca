"""The generated images to segment."""

import time

import torch

from steadeq.lab.data import Shapes
from steadeq.lab.data.shapes import CLASSES
from steadeq.lab.tasks import Segmentation

SMALL = {"num_train": 40, "num_validation": 20, "num_test": 10}


def test_images_and_labels_have_the_shapes_that_a_segmenter_takes():
    splits = Shapes(**SMALL, size=24).load()
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [40, 20, 10]
    x, y = splits.train.batch(torch.arange(4))
    assert (x.shape, x.dtype) == ((4, 3, 24, 24), torch.float32)
    assert (y.shape, y.dtype) == ((4, 24, 24), torch.int64)
    assert isinstance(Shapes.task, Segmentation)
    assert abs(float(splits.train.all()[0].mean())) < 0.3
    assert 0.3 < float(splits.train.all()[0].std()) < 1.5


def test_images_are_a_function_of_the_seed_and_never_the_same_in_two_splits():
    first, again, other = (Shapes(**SMALL, seed=seed).load() for seed in (1, 1, 2))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert torch.equal(first.test.targets, again.test.targets)
    assert not torch.equal(first.train.inputs, other.train.inputs)
    rows = [{bytes(image.flatten().tolist()) for image in part.inputs} for part in (first.train, first.validation)]
    assert not rows[0] & rows[1]


def test_all_classes_occur_and_each_image_has_some_shape():
    labels = Shapes(**SMALL).load().train.targets
    shares = torch.bincount(labels.flatten(), minlength=len(CLASSES)) / labels.numel()
    assert len(shares) == 4
    assert 0.4 < float(shares[0]) < 0.85
    assert float(shares[1:].min()) > 0.04
    assert bool((labels.flatten(1) > 0).any(dim=1).float().mean() > 0.9)


def test_each_shape_is_what_its_label_says():
    """A disk fills π/4 of its bounding square, a square 1/2 to all of it, a triangle about a half at most."""
    splits = Shapes(num_train=400, num_validation=1, num_test=1, size=48).load()
    fills = {1: [], 2: [], 3: []}
    for labels in splits.train.targets:
        present = torch.unique(labels[labels > 0])
        if len(present) != 1:
            continue
        ys, xs = (labels > 0).nonzero(as_tuple=True)
        height, width = int(ys.max() - ys.min()) + 1, int(xs.max() - xs.min()) + 1
        inside = min(int(ys.min()), int(xs.min())) > 0 and max(int(ys.max()), int(xs.max())) < 47
        if inside:
            fills[int(present)].append(len(ys) / (height * width))
    medians = {kind: float(torch.tensor(values).median()) for kind, values in fills.items()}
    assert abs(medians[1] - 0.785) < 0.03
    assert medians[3] < 0.56
    assert max(fills[2]) > 0.85


def test_two_thousand_images_take_seconds():
    begin = time.perf_counter()
    Shapes(num_train=2_000, num_validation=1, num_test=1).load()
    assert time.perf_counter() - begin < 10
