"""The small networks, and models by name."""

import pytest
import torch

from steadeq import GMRES, Anderson, Broyden, Equilibrium, Implicit, models
from steadeq.models import AbstractEquilibriumModel, ConvDEQ, ToyDEQ

TIGHT = Anderson(max_evals=100, tol=1e-12)
EXACT = Implicit(GMRES(max_evals=100, tol=1e-12))
SHAPES = {"toy": (1,), "conv/digits": (1, 8, 8)}


def make_input(name: str, batch: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(batch, *SHAPES[name], dtype=dtype, generator=torch.Generator().manual_seed(1))


def test_the_toy_model_has_the_200_parameters_of_the_paper():
    assert sum(p.numel() for p in ToyDEQ().parameters()) == 200


@torch.no_grad()
def test_the_toy_cell_is_the_formula_of_the_paper():
    model = ToyDEQ(hidden=7).double()
    cell = model.layer.cell
    z, x = torch.randn(5, 1).double(), torch.randn(5, 1).double()
    output = cell(z, x)
    for b in range(5):
        expected = sum(
            cell.W2[k, 0] * max(0.0, float(cell.W1[k, 0] * z[b, 0] + cell.U[k, 0] * x[b, 0] + cell.b[k]))
            for k in range(7)
        )
        assert float(output[b, 0]) == pytest.approx(float(expected), rel=1e-12)


def test_the_output_of_the_toy_model_is_its_equilibrium():
    model = ToyDEQ().double()
    x = torch.linspace(-1, 1, 9).double()[:, None]
    y, eq = model.solve(x, solver=TIGHT)
    assert eq.stats.converged.all()
    torch.testing.assert_close(model.layer.cell(y, x), y, rtol=1e-10, atol=1e-10)


def test_the_conv_cell_is_its_formula():
    model = ConvDEQ(channels=8, hidden=8)
    cell = model.layer.cell
    z, x = torch.randn(2, 8, 8, 8), torch.randn(2, 8, 8, 8)
    h = torch.relu(cell.norm1(cell.conv1(z)))
    torch.testing.assert_close(cell(z, x), cell.norm3(torch.relu(x + cell.norm2(cell.conv2(h)))))


@pytest.mark.parametrize("name", SHAPES)
def test_a_sample_does_not_feel_the_others(name):
    model = models.create(name).double()
    x = make_input(name, dtype=torch.float64)
    solver = Broyden(max_evals=15, tol=1e-6)
    together, eq = model.solve(x, solver=solver)
    for b in range(len(x)):
        alone, own = model.solve(x[b : b + 1], solver=solver)
        torch.testing.assert_close(alone[0], together[b], rtol=1e-7, atol=1e-9)
        assert own.stats.num_evals[0] == eq.stats.num_evals[b]


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_gets_a_finite_gradient(name):
    model = models.create(name)
    output, eq = model.solve(make_input(name))
    assert isinstance(model, AbstractEquilibriumModel)
    assert isinstance(eq, Equilibrium)
    output.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_gradients_are_those_of_the_equilibrium():
    model = ToyDEQ(hidden=5).double()
    x = torch.randn(4, 1).double()

    def loss(*values):
        names = [name for name, _ in model.named_parameters()]
        parameters = dict(zip(names, values, strict=True))
        output = torch.func.functional_call(model, parameters, (x,), {"solver": TIGHT, "adjoint": EXACT})
        return output.square().sum()

    assert torch.autograd.gradcheck(loss, tuple(p.detach().requires_grad_() for p in model.parameters()))


def test_presets_take_overrides():
    assert models.create("toy", hidden=3).layer.cell.W1.shape == (3, 1)
    solver = Anderson(max_evals=2)
    _, eq = models.create("conv/digits", solver=solver).solve(make_input("conv/digits"))
    assert int(eq.stats.num_evals.max()) == 2
