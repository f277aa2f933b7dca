"""The benchmark of loops in few bits: rounding rounds, and the gain is a gain."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("few_bits")


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


def test_the_page_shows_the_numbers_that_are_kept(bench):
    page = bench.PAGE.read_text(encoding="utf-8")
    assert bench.fill(page, bench.kept.read(bench.NUMBERS)) == page
    assert bench.FIGURE.is_file()


def test_ranks_correlate_as_spearman_says(bench):
    stats = pytest.importorskip("scipy.stats")
    pairs = [(1.0, 0.3), (2.0, 0.9), (2.0, 0.1), (5.0, 0.1), (4.0, 0.2)]
    assert bench.rank_correlation(pairs) == pytest.approx(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
