"""Loops of the shapes that others train: the page shows what was measured, and the line does what it says."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest
import torch

from steadeq import JacobianRegularizer, ResidualRegularizer, SpectralRegularizer

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("benchmark_loops", ROOT / "benchmarks" / "loops.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_numbers_that_are_kept(bench):
    page = bench.PAGE.read_text(encoding="utf-8")
    assert bench.fill(page, bench.read()) == page


@pytest.mark.parametrize("name", ["TRM", "HRM", "Huginn", "Parcae", "Ouro", "deep-thinking"])
@pytest.mark.parametrize(
    "regularizer",
    [
        JacobianRegularizer(weight=0.5, estimator="difference"),
        SpectralRegularizer(weight=0.5, estimator="difference"),
        ResidualRegularizer(weight=0.5),
    ],
    ids=lambda regularizer: type(regularizer).__name__,
)
def test_every_shape_takes_every_penalty_with_fused_attention(bench, name, regularizer):
    torch.manual_seed(0)
    model = bench.example.MODELS[name]()
    strings = bench.example.draw_strings(4, 8)
    terms = []

    def noted(eq):
        terms.append(regularizer(eq))
        return terms[-1]

    random.seed(0)
    torch.manual_seed(1)
    total = model.loss(*strings, noted)
    random.seed(0)
    torch.manual_seed(1)
    plain = model.loss(*strings, bench.nothing)
    (term,) = terms
    assert total.item() == pytest.approx(plain.item() + term.item(), rel=1e-5)
    gradients = torch.autograd.grad(term, list(model.parameters()), allow_unused=True)
    assert sum(float(gradient.abs().sum()) for gradient in gradients if gradient is not None) > 0


def test_candidates_for_trm_penalize_what_they_say(bench):
    torch.manual_seed(0)
    model = bench.example.TRM()
    calls = []
    model.net.register_forward_hook(lambda *_: calls.append(None))
    x = model.embed(bench.example.draw_strings(4, 8)[0]).detach()
    eq = bench.Equilibrium.at(model.once, bench.example.Carry(torch.randn_like(x), torch.randn_like(x)), x)
    passes = {}
    for name in ("cycle", "once", "slow", "fast"):
        calls.clear()
        bench.CANDIDATES[name](model)(eq).backward()
        passes[name] = len(calls)
    assert passes == {"cycle": 14, "once": 4, "slow": 2, "fast": 2}
