"""Augmentation of batches in memory, and which samples are set apart."""

import pickle

import pytest
import torch

from steadeq.lab.data.augmentation import Preparation, crop_and_flip, normalize
from steadeq.lab.data.dataset import hold_out
from steadeq.lab.errors import InputError


def coordinates(batch: int = 400, height: int = 8, width: int = 9) -> torch.Tensor:
    """Return images whose pixels say where they are, from 1 on."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows + 1, columns + 1]).float().expand(batch, 2, height, width)


@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("mirror", [False, True])
def test_shifts_and_mirrors_are_uniform_and_exact(padding, mirror):
    images = coordinates()
    result = crop_and_flip(images, torch.Generator().manual_seed(0), padding=padding, mirror=mirror)
    assert result.shape == images.shape
    assert result.is_contiguous()
    seen = []
    for image in result:
        column = image[1].amax(dim=0)
        inside = column[column > 0]
        is_mirrored = bool((inside.diff() < 0).all())
        image = image.flip(2) if is_mirrored else image
        down = next(d for d in range(-padding, padding + 1) if image[0, 3, 4] == 4 + d)
        right = next(r for r in range(-padding, padding + 1) if image[1, 3, 4] == 5 + r)
        padded = torch.nn.functional.pad(images[0], (padding,) * 4)
        assert torch.equal(image, padded[:, padding + down :, padding + right :][:, :8, :9])
        seen.append((down, right, is_mirrored))
    shifts = set(range(-padding, padding + 1))
    assert {down for down, _, _ in seen} == {right for _, right, _ in seen} == shifts
    mirrored = sum(is_mirrored for _, _, is_mirrored in seen)
    assert 150 < mirrored < 250 if mirror else mirrored == 0


def test_augmentation_depends_on_the_generator_alone():
    prepare = Preparation(mean=(0.5, 0.2), std=(0.25, 0.3), padding=2, mirror=True)
    images = coordinates(8).to(torch.uint8)
    first = prepare(images, torch.Generator().manual_seed(1))
    torch.manual_seed(7)
    assert torch.equal(first, prepare(images, torch.Generator().manual_seed(1)))
    assert not torch.equal(first, prepare(images, torch.Generator().manual_seed(2)))
    assert torch.equal(prepare(images, None), normalize(images, (0.5, 0.2), (0.25, 0.3)))
    assert pickle.loads(pickle.dumps(prepare)) == prepare


def test_samples_are_set_apart_at_random_but_always_the_same():
    train, validation = hold_out(1000, 200)
    again, _ = hold_out(1000, 200, num_train=300)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(1000))
    assert set(again.tolist()) < set(train.tolist())
    assert len(again) == 300
    # Not one end of what is sorted by class.
    assert 400 < float(validation.float().mean()) < 600
    assert torch.equal(validation, hold_out(1000, 200)[1])


@pytest.mark.parametrize(("num_validation", "num_train"), [(0, None), (10, None), (11, None), (5, 6), (5, 0)])
def test_impossible_numbers_of_samples_are_refused(num_validation, num_train):
    with pytest.raises(InputError, match=rf"num_validation \({num_validation}\).*10 training samples"):
        hold_out(10, num_validation, num_train=num_train)
