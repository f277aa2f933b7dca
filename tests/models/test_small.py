"""The small networks, and models by name."""

import pytest
import torch

from steadeq import GMRES, Anderson, Implicit, models
from steadeq.models import ConvDEQ, ToyDEQ

TIGHT = Anderson(max_evals=100, tol=1e-12)
EXACT = Implicit(GMRES(max_evals=100, tol=1e-12))


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


def test_presets_take_overrides():
    assert models.create("toy", hidden=3).layer.cell.W1.shape == (3, 1)
    solver = Anderson(max_evals=2)
    _, eq = models.create("conv/digits", solver=solver).solve(torch.randn(3, 1, 8, 8))
    assert int(eq.stats.num_evals.max()) == 2
