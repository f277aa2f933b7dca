"""Parities of bits so far."""

import pytest
import torch

from steadeq.lab.data import PrefixSums
from steadeq.lab.tasks import Tagging

SMALL = PrefixSums(num_train=50, num_validation=20, num_test=30, num_bits=9)


def test_targets_are_the_parities_of_the_ones_so_far():
    x, y = SMALL.load().train.batch(torch.arange(50))
    assert x.shape == (50, 1, 9)
    for bits, parities in zip(x[:, 0].int().tolist(), y.tolist(), strict=True):
        assert parities == [sum(bits[: end + 1]) % 2 for end in range(9)]


def test_strings_are_drawn_from_the_seed_and_splits_differ():
    first, again = (PrefixSums(num_bits=32).load() for _ in range(2))
    for split in ("train", "validation", "test"):
        assert torch.equal(
            getattr(first, split).batch(torch.arange(4))[0], getattr(again, split).batch(torch.arange(4))[0]
        )
    seen = {tuple(x) for x in first.train.batch(torch.arange(6_400))[0][:, 0].int().tolist()}
    assert not seen & {tuple(x) for x in first.test.batch(torch.arange(512))[0][:, 0].int().tolist()}
    assert not torch.equal(PrefixSums(seed=1).load().train[0][0], PrefixSums(seed=2).load().train[0][0])


@pytest.mark.parametrize("field", ["num_train", "num_validation", "num_test", "num_bits"])
def test_sizes_that_make_no_sense_are_refused(field):
    with pytest.raises(ValueError, match=field):
        PrefixSums(**{field: 0})


def test_a_sequence_is_right_only_where_all_of_it_is():
    target = torch.tensor([[0, 1, 1], [1, 1, 0]])
    output = torch.nn.functional.one_hot(torch.tensor([[0, 1, 1], [1, 0, 0]]), 2).movedim(-1, 1).float()
    task = Tagging()
    losses = task.losses(output, target)
    assert task.scores(output, target, losses).tolist() == [1.0, 0.0]
    # The loss of a sequence is the mean over its positions.
    right, wrong = (torch.log1p(torch.exp(torch.tensor(sign))) for sign in (-1.0, 1.0))
    torch.testing.assert_close(losses, torch.stack([right, (2 * right + wrong) / 3]))
    with pytest.raises(ValueError, match="output is"):
        task.check(output[..., :2], target)
    with pytest.raises(ValueError, match="num_classes is 2"):
        task.check(output, target + 1)
