"""Sums of two numbers, digit by digit."""

import pytest
import torch

from steadeq.lab.data import Addition

SMALL = Addition(num_train=200, num_validation=20, num_test=30, num_digits=7)


def number(digits):
    """Return the number with some digits, the lowest first."""
    return sum(digit * 10**place for place, digit in enumerate(digits))


def test_targets_are_the_digits_of_the_sums():
    x, y = SMALL.load().train.batch(torch.arange(200))
    assert x.shape == y.shape == (200, 8)
    assert not x[:, 7].any(), "the last position takes the carry"
    for tokens, digits in zip(x.tolist(), y.tolist(), strict=True):
        assert number(token // 10 for token in tokens) + number(token % 10 for token in tokens) == number(digits)


def test_carries_travel_far():
    x, _ = Addition(num_digits=30).load().train.batch(torch.arange(1_000))
    sums = x[:, :30] // 10 + x[:, :30] % 10
    # Half of the positions by choice, and a tenth of the others by chance.
    assert (sums == 9).double().mean().item() == pytest.approx(0.55, abs=0.01)


def test_problems_are_drawn_from_the_seed_and_splits_differ():
    first, again = (Addition().load() for _ in range(2))
    for split in ("train", "validation", "test"):
        found, expected = (getattr(splits, split).batch(torch.arange(4)) for splits in (first, again))
        assert all(map(torch.equal, found, expected))
    seen = {tuple(x) for x in first.train.batch(torch.arange(12_800))[0].tolist()}
    assert not seen & {tuple(x) for x in first.test.batch(torch.arange(512))[0].tolist()}
    assert not torch.equal(Addition(seed=1).load().train[0][0], Addition(seed=2).load().train[0][0])


@pytest.mark.parametrize("field", ["num_train", "num_validation", "num_test", "num_digits"])
def test_sizes_that_make_no_sense_are_refused(field):
    with pytest.raises(ValueError, match=field):
        Addition(**{field: 0})
