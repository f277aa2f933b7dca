"""The benchmark of loops in few bits: rounding rounds, and the gain is a gain."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("benchmark_few_bits", ROOT / "benchmarks" / "few_bits.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_weights_are_rounded_by_channel_to_so_many_levels_and_come_back(bench, bits):
    model = nn.Sequential(nn.Linear(50, 4), nn.Conv1d(4, 6, 3))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with bench.rounded(model, bits):
        for layer in model:
            whole = before[f"{list(model).index(layer)}.weight"]
            for channel, exact in zip(layer.weight.detach(), whole, strict=True):
                step = exact.abs().max() / (2 ** (bits - 1) - 1)
                levels = channel / step
                assert torch.allclose(levels, levels.round(), atol=1e-4)
                assert (channel - exact).abs().max() <= 0.501 * step
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_gradients_pass_straight_through(bench):
    weight = torch.randn(3, 5, requires_grad=True)
    bench.Rounded(3)(weight).sum().backward()
    assert torch.equal(weight.grad, torch.ones(3, 5))


def test_the_gain_is_how_much_a_settled_loop_multiplies_a_change(bench):
    # Of a linear block with the Jacobian M, the fixed point moves by (I - M)⁻¹ times what is added to an evaluation.
    class Half(nn.Module):
        def forward(self, z, x):
            return 0.5 * z + x

    torch.manual_seed(0)
    found = bench.gain(bench.example.Model(Half()), 4, num_samples=1)
    assert found == {"gain": pytest.approx(2.0), "radius": pytest.approx(0.5)}
