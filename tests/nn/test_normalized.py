"""`Normalized`: any block with a normalization behind it."""

import pytest
import torch
from torch import nn

from steadeq import diagnose
from steadeq.nn import Normalized


class Adding(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 6), scale

    def forward(self, z, x, step=0):
        return z + self.scale * torch.relu(self.linear(z) + x) + step


def test_it_is_the_norm_of_the_block():
    block, norm = Adding(), nn.LayerNorm(6)
    z, x = torch.randn(2, 3, 6)
    assert torch.equal(Normalized(block, norm)(z, x, step=2), norm(block(z, x, step=2)))


def test_each_tensor_of_a_state_has_its_norm_or_all_have_one():
    def swap(state, x):
        return {"a": state["b"] + x, "b": state["a"]}

    class Swap(nn.Module):
        forward = staticmethod(swap)

    state, x = {"a": torch.randn(3, 6), "b": torch.randn(3, 6)}, torch.randn(3, 6)
    norms = nn.LayerNorm(6), nn.RMSNorm(6)
    found, expected = Normalized(Swap(), *norms)(state, x), swap(state, x)
    assert torch.equal(found["a"], norms[0](expected["a"]))
    assert torch.equal(found["b"], norms[1](expected["b"]))
    shared = Normalized(Swap(), norms[0])(state, x)
    assert torch.equal(shared["b"], norms[0](expected["b"]))
    with pytest.raises(ValueError, match="has 3 norms, and the state 2 tensors"):
        Normalized(Swap(), *norms, norms[0])(state, x)
    with pytest.raises(ValueError, match="needs a norm"):
        Normalized(Swap())


def test_the_weights_of_the_block_stay_where_they_are_and_its_state_is_bounded():
    block, x = Adding(), torch.randn(4, 6)
    normalized = Normalized(block, nn.LayerNorm(6))
    assert normalized.block is block
    assert normalized.state_dict()["block.linear.weight"].data_ptr() == block.linear.weight.data_ptr()
    assert diagnose(block, torch.zeros(4, 6), x, max_evals=64).growth.min() > 2
    assert diagnose(normalized, torch.zeros(4, 6), x, max_evals=64).growth.max() < 1.1
