"""Linear maps with normalized weights."""

import copy

import pytest
import torch
from torch import nn

from steadeq.nn import WeightNormLinear, cached_parameters
from steadeq.nn.weight_norm import make_linear


def test_it_is_a_plain_linear_map_at_first():
    linear = WeightNormLinear(5, 3)
    x = torch.randn(2, 7, 5)
    torch.testing.assert_close(linear(x), x @ linear.v.T)
    bound = 5**-0.5
    assert linear.v.abs().max() <= bound
    assert linear.bias.abs().max() == 0


def test_each_row_of_the_weight_has_the_norm_g():
    linear = WeightNormLinear(5, 3)
    with torch.no_grad():
        linear.g.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
        linear.v.mul_(7)
    torch.testing.assert_close(linear.compute().norm(dim=1), torch.tensor([1.0, 2.0, 3.0]))


def test_it_agrees_with_torch():
    linear = WeightNormLinear(5, 3)
    oracle = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    with torch.no_grad():
        linear.v.normal_()
        linear.bias.normal_()
        oracle.parametrizations.weight.original0.copy_(linear.g)
        oracle.parametrizations.weight.original1.copy_(linear.v)
        oracle.bias.copy_(linear.bias)
    x = torch.randn(4, 5)
    torch.testing.assert_close(linear(x), oracle(x))


def test_its_double_backward_is_right_in_all_parameters():
    linear = WeightNormLinear(3, 2).double()
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def map_with(x, v, g, bias):
        return torch.func.functional_call(linear, {"v": v, "g": g, "bias": bias}, (x,))

    assert torch.autograd.gradgradcheck(map_with, (x, linear.v, linear.g, linear.bias))


def test_the_weight_is_cached_parameters_in_a_solve_and_reaches_its_parameters():
    linear = WeightNormLinear(3, 3)
    with cached_parameters(linear):
        with torch.no_grad():
            linear(torch.ones(1, 3))
        assert linear.cached() is linear.cached()
        linear(torch.ones(1, 3)).sum().backward()
    assert linear.v.grad is not None
    assert torch.equal(copy.deepcopy(linear)(torch.ones(1, 3)), linear(torch.ones(1, 3)))


@pytest.mark.parametrize("bias", [True, False])
def test_weight_norm_can_be_switched_off(bias):
    plain, normed = (make_linear(4, 6, bias=bias, weight_norm=switch) for switch in (False, True))
    assert isinstance(plain, nn.Linear)
    assert isinstance(normed, WeightNormLinear)
    assert (plain.bias is not None, normed.bias is not None) == (bias, bias)
