"""A cell that is random between evaluations is noticed, and no other one is."""

import warnings

import pytest
import torch
from adjoints.cells import FORWARD_SOLVERS, TIGHT, TanhCell, leaf
from torch import nn

from steadeq import DEQ, Anderson, Broyden, Implicit, OneStep, Picard, RandomnessWarning, Unrolled, fixed_point


class Cell(nn.Module):
    """A cell with something between its linear map and tanh."""

    def __init__(self, middle: nn.Module, dim: int = 64) -> None:
        super().__init__()
        self.linear, self.middle = nn.Linear(dim, dim), middle

    def forward(self, z, x):
        return torch.tanh(self.middle(0.5 * self.linear(z) + x))


def noise(scale):
    return lambda z, x: torch.tanh(0.5 * z + x + scale * torch.randn_like(z))


@pytest.mark.parametrize("adjoint", [Implicit(), OneStep()])
@pytest.mark.parametrize("solver", [Anderson(), Broyden(max_evals=12), Picard(tol=1e-1)])
def test_dropout_is_noticed_and_named(solver, adjoint):
    layer = DEQ(Cell(nn.Dropout(0.1)), solver=solver, adjoint=adjoint)
    x = torch.randn(8, 64)
    with pytest.warns(
        RandomnessWarning, match=r"random.*\(middle: Dropout in training mode\).*use steadeq\.nn\.VariationalDropout"
    ):
        layer(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-2, 1.0])
def test_noise_of_any_kind_is_noticed(dtype, scale):
    x = leaf(8, 1000, dtype=dtype)
    with pytest.warns(RandomnessWarning, match="f is random between evaluations, so that"):
        fixed_point(noise(scale), torch.zeros_like(x), x)


def test_dropout_is_noticed_under_autocast():
    layer, x = DEQ(Cell(nn.Dropout(0.2))), torch.randn(8, 64)
    with pytest.warns(RandomnessWarning, match="middle"), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)


@pytest.mark.parametrize("compact", [False, True])
def test_batch_norm_in_training_mode_is_noticed(compact):
    cell = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh())
    z0 = torch.zeros(32, 64)
    match = r"batch norm in training mode \(1: BatchNorm1d\), which makes the samples.*updates its statistics"
    with pytest.warns(RandomnessWarning, match=match):
        fixed_point(cell, z0, compact=compact)
    with pytest.warns(RandomnessWarning, match=match):
        fixed_point(cell.forward, z0, compact=compact)


def test_it_is_said_once():
    x = leaf(4, 50, dtype=torch.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            fixed_point(noise(0.1), torch.zeros_like(x), x, solver=Anderson(tol=0))
    assert [warning.category for warning in caught] == [RandomnessWarning]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("solver", [Anderson(), Broyden(tol=1e-6), Picard(max_evals=4), Anderson(tol=0, max_evals=5)])
@pytest.mark.parametrize("norm", [0.5, 0.95, 3.0])
def test_a_deterministic_cell_never_warns_nor_costs_an_evaluation(dtype, solver, norm):
    cell = TanhCell(48, norm, dtype)
    x = torch.randn(20, 48).to(dtype)
    x[::3] *= 30
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, compact=False)
    assert cell.num_calls == eq.stats.num_evals.max() + 1
    fixed_point(cell, torch.zeros_like(x), x, solver=solver, compact=True)


@pytest.mark.parametrize("solver", FORWARD_SOLVERS.values(), ids=FORWARD_SOLVERS)
def test_equilibria_at_zero_and_non_finite_samples_do_not_warn(solver):
    x = leaf(3, 6)
    weight = leaf(6, 6)
    fixed_point(lambda z: 0.5 * torch.tanh(z * weight[0].cos()), torch.ones(3, 6, dtype=torch.float64), solver=solver)
    with torch.no_grad():
        x[1, 0] = torch.inf
        x[2, 0] = torch.nan
    fixed_point(lambda z, x: 0.5 * z + x, torch.zeros_like(x), x, solver=solver)


@pytest.mark.parametrize("norm", [0.9, 3.0])
def test_autocast_and_other_rounding_during_the_solve_do_not_warn(norm):
    cell = Cell(nn.LayerNorm(64))
    with torch.no_grad():
        cell.linear.weight.mul_(2 * norm / torch.linalg.matrix_norm(cell.linear.weight, 2))
    x = torch.randn(64, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fixed_point(cell, torch.zeros_like(x), x)
    # As compiled code does, which rounds in other places.
    wide = lambda z, x: cell.double()(z.double(), x.double()).float()  # noqa: E731
    with torch.no_grad():
        f_solve = lambda z, x: wide(z, x)  # noqa: E731
    fixed_point(lambda z, x: cell.float()(z, x), torch.zeros_like(x), x, f_solve=f_solve)


def test_eval_mode_fixed_masks_and_unrolling_do_not_warn():
    x = torch.randn(8, 64)
    for middle in (nn.Dropout(0.5), nn.BatchNorm1d(64)):
        fixed_point(Cell(middle).eval(), torch.zeros_like(x), x)
    mask = (torch.rand(8, 64) > 0.5).float()
    cell = Cell(nn.Identity())
    fixed_point(lambda z, x, mask: mask * cell(z, x), torch.zeros_like(x), x, mask, solver=Anderson(tol=1e-5))
    fixed_point(Cell(nn.Dropout(0.5)), torch.zeros_like(x), x, adjoint=Unrolled())


def test_nothing_is_looked_at_without_gradients():
    cell = Cell(nn.Dropout(0.5))
    x = torch.randn(8, 64)
    with torch.no_grad():
        fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT)
