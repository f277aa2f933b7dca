"""The penalty on the residual, and closed loops on what a solve costs."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from steadeq import Anderson, Equilibrium, fixed_point, residual_penalty


def test_it_is_the_square_of_the_relative_residual_that_a_solve_reports():
    W, x = torch.randn(6, 6, dtype=torch.float64) / 3, torch.randn(4, 6, dtype=torch.float64)
    eq = fixed_point(lambda z, x: torch.tanh(z @ W.T + x), torch.zeros_like(x), x, solver=Anderson(max_evals=3))
    assert residual_penalty(eq).item() == pytest.approx(eq.stats.residual.square().mean().item())


def test_its_gradient_passes_gradcheck_and_treats_z_as_constant():
    z = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def value(W, x):
        return residual_penalty(Equilibrium.at(lambda z, x: torch.tanh(z @ W.T + x), 2 * z, x))

    W, x = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 5), (3, 5)))
    assert torch.autograd.gradcheck(value, (W, x))
    value(W, x).backward()
    assert z.grad is None


def test_it_has_no_kink_at_a_fixed_point():
    scale = torch.ones(3, dtype=torch.float64, requires_grad=True)
    value = residual_penalty(Equilibrium.at(lambda z: scale * z, torch.ones(2, 3, dtype=torch.float64)))
    assert value.item() == 0
    assert torch.autograd.grad(value, scale)[0].tolist() == [0, 0, 0]


def test_states_and_images_of_zero_have_a_value_and_a_gradient():
    z = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]])
    scale, shift = torch.zeros(2, requires_grad=True), torch.tensor([[0.0], [0.0], [3.0]])
    value = residual_penalty(Equilibrium.at(lambda z, shift: scale * z + shift, z, shift))
    assert value.item() == pytest.approx((0 + 1 + 1) / 3)
    assert torch.autograd.grad(value, scale)[0].isfinite().all()


def test_it_costs_one_evaluation_and_keeps_its_precision_under_autocast():
    calls = []
    W = torch.eye(64)

    def f(z):
        calls.append(z)
        return z @ W.T

    z = torch.randn(2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = residual_penalty(Equilibrium.at(f, z))
    assert len(calls) == 1
    assert value.dtype == torch.float32
    # What bfloat16 makes of z.
    expected = (z.bfloat16().float() - z).square().sum(dim=1) / z.bfloat16().float().square().sum(dim=1)
    assert value.item() == pytest.approx(expected.mean().item(), rel=1e-4)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_maps_have_its_gradient(use_reentrant):
    cell, z = torch.nn.Linear(5, 5), torch.randn(3, 5)
    frugal = lambda z: checkpoint(cell, z, use_reentrant=use_reentrant)  # noqa: E731
    found = [torch.autograd.grad(residual_penalty(Equilibrium.at(cell, z)), list(cell.parameters()))]
    cell.zero_grad()
    residual_penalty(Equilibrium.at(frugal, z)).backward()
    for expected, parameter in zip(found[0], cell.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected)
