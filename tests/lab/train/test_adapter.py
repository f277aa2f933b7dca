"""One way to call networks that solve nothing, that solve, and that carry something on."""

import pytest
import torch
from torch import nn

from steadeq import Anderson, OneStep, Picard, Unrolled, fixed_point
from steadeq.lab.train.adapter import ModelAdapter
from steadeq.models import DEQTransformerLM, ToyDEQ, TransformerXL

SIZES = {"vocab_size": 11, "features": 8, "num_heads": 2, "hidden_features": 12, "memory_length": 6, "std": 0.3}


class SolveOnly(nn.Module):
    """Somebody's own network around an equilibrium: it has `solve`, and nothing else that could be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.seen: dict = {}

    def cell(self, z, x):
        return 0.5 * torch.tanh(self.linear(z) + x)

    def solve(self, x, *, solver=None, adjoint=None):
        self.seen = {"solver": solver, "adjoint": adjoint}
        options = {name: value for name, value in self.seen.items() if value is not None}
        eq = fixed_point(self.cell, torch.zeros_like(x), x, **options)
        return eq.z.sum(dim=1), eq

    def forward(self, x):
        return self.solve(x)[0]


# Networks that solve nothing


def test_any_module_is_called_as_it_is():
    model, x = nn.Sequential(nn.Linear(3, 5), nn.Tanh()), torch.randn(4, 3)
    adapter = ModelAdapter(model)
    assert not adapter.has_equilibrium
    # What is about solving does not reach it.
    answer = adapter(x, solver=Anderson(), adjoint=OneStep(), depth=3, carry=(x,))
    assert torch.equal(answer.output, model(x))
    assert answer.equilibrium is None
    assert answer.carry is None


# Networks that solve


def test_a_module_that_can_solve_is_asked_to():
    model, x = SolveOnly(), torch.randn(4, 3)
    adapter = ModelAdapter(model)
    assert adapter.has_equilibrium
    answer = adapter(x, solver=Anderson(max_evals=7, tol=0.0), adjoint=OneStep())
    assert model.seen == {"solver": Anderson(max_evals=7, tol=0.0), "adjoint": OneStep()}
    assert answer.equilibrium.stats.num_evals.tolist() == [7] * 4
    assert torch.equal(answer.output, answer.equilibrium.z.sum(dim=1))
    assert answer.carry is None


def test_a_module_that_can_only_solve_is_unrolled_by_plain_iteration():
    model, x = SolveOnly(), torch.randn(4, 3)
    answer = ModelAdapter(model)(x, depth=3)
    assert model.seen == {"solver": Picard(max_evals=4, tol=0), "adjoint": Unrolled()}
    z = torch.zeros_like(x)
    for _ in range(3):
        z = model.cell(z, x)
    torch.testing.assert_close(answer.output, z.sum(dim=1))
    gradients = [torch.autograd.grad(output.sum(), model.linear.weight)[0] for output in (answer.output, z)]
    torch.testing.assert_close(*gradients)


def test_an_equilibrium_model_has_its_own_ways():
    model, x = ToyDEQ(hidden=5), torch.randn(4, 1)
    adapter = ModelAdapter(model)
    solver = Anderson(max_evals=9, tol=1e-6)
    answer = adapter(x, solver=solver)
    output, eq = model.solve(x, solver=solver)
    assert torch.equal(answer.output, output)
    assert torch.equal(answer.equilibrium.stats.residual, eq.stats.residual)
    unrolled, (output, _) = adapter(x, depth=4), model.unroll(x, 4)
    assert torch.equal(unrolled.output, output)
    assert unrolled.equilibrium.stats.num_evals.tolist() == [4] * 4
    model.layer.solver = Anderson(max_evals=3, tol=0.0)
    assert adapter(x).equilibrium.stats.num_evals.max() <= 3


# Networks that carry something on


@pytest.mark.parametrize("depth", [None, 2])
@pytest.mark.parametrize("kind", [DEQTransformerLM, TransformerXL])
def test_language_models_go_on_with_their_carry(kind, depth):
    sizes = SIZES if kind is DEQTransformerLM else {**SIZES, "num_layers": 2}
    model, tokens = kind(**sizes).eval(), torch.randint(11, (2, 10))
    adapter = ModelAdapter(model)
    assert adapter.has_equilibrium == (kind is DEQTransformerLM)
    solver = Anderson(max_evals=60, tol=1e-6)
    first = adapter(tokens[:, :5], solver=solver, depth=depth)
    second = adapter(tokens[:, 5:], carry=first.carry, solver=solver, depth=depth)
    assert (first.equilibrium is None) == (kind is TransformerXL)
    assert first.carry[0].shape[:2] == (2, 5)
    assert second.carry[0].shape[:2] == (2, 6)
    assert not second.carry[0].requires_grad
    alone = adapter(tokens[:, 5:], solver=solver, depth=depth)
    assert not torch.equal(second.output.hidden, alone.output.hidden)
