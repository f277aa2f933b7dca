import math

import pytest
import torch

from steadeq import Equilibrium, jacobian_penalty

PROBES = ("rademacher", "gaussian", "sphere")


def linear(z, M):
    return torch.einsum("bij,bj->bi", M, z)


def matrices(batch=4, dim=12, dtype=torch.float64):
    return torch.randn(batch, dim, dim, dtype=dtype) / math.sqrt(dim)


@pytest.mark.parametrize("probe", PROBES)
def test_penalty_is_an_unbiased_estimate_of_the_squared_norm_over_d(probe):
    M = matrices()
    exact = M.square().sum() / (4 * 12)
    samples = torch.stack(
        [
            jacobian_penalty(Equilibrium.at(linear, torch.zeros(4, 12, dtype=M.dtype), M), probe=probe)
            for _ in range(4000)
        ]
    )
    standard_error = samples.std() / math.sqrt(4000)
    assert abs(samples.mean() - exact) < 4 * standard_error
    assert standard_error < 0.01 * exact


@pytest.mark.parametrize("probe", PROBES)
def test_variance_of_one_probe_matches_its_formula(probe):
    M = matrices(batch=1, dim=10)
    A = M[0] @ M[0].T
    n = 10
    expected = {
        "gaussian": 2 * A.square().sum(),
        "rademacher": 2 * (A.square().sum() - A.diagonal().square().sum()),
        "sphere": 2 * n / (n + 2) * (A - A.trace() / n * torch.eye(n, dtype=A.dtype)).square().sum(),
    }[probe]
    estimate = torch.stack(
        [
            jacobian_penalty(Equilibrium.at(linear, torch.zeros(1, n, dtype=M.dtype), M), probe=probe) * n
            for _ in range(6000)
        ]
    )
    assert estimate.var() == pytest.approx(expected.item(), rel=0.15)


def test_error_falls_with_the_square_root_of_the_number_of_probes():
    M = matrices(batch=1)
    exact = M.square().sum() / 12

    def error(num_probes):
        z = torch.zeros(1, 12, dtype=M.dtype)
        estimates = [
            jacobian_penalty(Equilibrium.at(linear, z, M), num_probes=num_probes, probe="gaussian") for _ in range(400)
        ]
        return (torch.stack(estimates) - exact).square().mean().sqrt()

    ratio = error(1) / error(16)
    assert 3 < ratio < 5.3


def test_rademacher_probes_are_exact_for_a_diagonal_jacobian():
    scale = torch.tensor([[0.5, 2.0, 3.0]])
    penalty = jacobian_penalty(Equilibrium.at(lambda z: scale * z, torch.ones(2, 3)))
    assert penalty.item() == pytest.approx((0.25 + 4 + 9) / 3)


def test_gradient_reaches_parameters_and_treats_z_as_constant():
    W = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    z = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    jacobian_penalty(Equilibrium.at(lambda z: torch.tanh(z @ W.T), z * 2), generator=generator).backward()
    assert z.grad is None
    probe = torch.empty(3, 5, dtype=torch.float64).bernoulli_(0.5, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def by_hand(W):
        slope = 1 - torch.tanh(2 * z.detach() @ W.T).square()
        return ((probe * slope) @ W).square().sum() / 15

    expected = torch.autograd.functional.jacobian(by_hand, W.detach())
    torch.testing.assert_close(W.grad, expected)


def test_penalty_gradient_passes_gradcheck():
    x = torch.randn(2, 4, dtype=torch.float64)
    z = torch.randn(2, 4, dtype=torch.float64)

    def penalty(W):
        generator = torch.Generator().manual_seed(3)
        return jacobian_penalty(
            Equilibrium.at(lambda z, x: torch.sigmoid(z @ W.T + x), z, x), generator=generator, num_probes=2
        )

    W = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(penalty, (W,))


def test_penalty_counts_every_leaf_of_a_nested_state():
    def f(z):
        return {"a": 2 * z["a"], "b": (3 * z["b"][0],)}

    z = {"a": torch.ones(2, 4), "b": (torch.ones(2, 2, 3),)}
    assert jacobian_penalty(Equilibrium.at(f, z)).item() == pytest.approx((4 * 4 + 6 * 9) / 10)


def test_penalty_without_gradients_keeps_no_graph():
    W = torch.randn(3, 3, requires_grad=True)
    with torch.no_grad():
        assert not jacobian_penalty(Equilibrium.at(lambda z: z @ W.T, torch.ones(1, 3))).requires_grad


def test_penalty_of_a_constant_map_is_zero():
    x = torch.ones(2, 3)
    assert jacobian_penalty(Equilibrium.at(lambda z: x, torch.ones(2, 3))).item() == 0
    W = torch.ones(3, requires_grad=True)
    assert jacobian_penalty(Equilibrium.at(lambda z: x * W, torch.ones(2, 3))).item() == 0


def test_half_precision_states_are_accumulated_in_single():
    z = torch.zeros(2, 4096, dtype=torch.bfloat16)
    penalty = jacobian_penalty(Equilibrium.at(lambda z: 0.5 * z, z))
    assert penalty.dtype == torch.float32
    assert penalty.item() == pytest.approx(0.25)


def test_generator_fixes_the_probes():
    M = matrices()
    z = torch.zeros(4, 12, dtype=M.dtype)

    def draw():
        return jacobian_penalty(Equilibrium.at(linear, z, M), generator=torch.Generator().manual_seed(5))

    assert draw() == draw()
    assert draw() != jacobian_penalty(Equilibrium.at(linear, z, M), generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_probes": 0}, "num_probes is 0; it must be an integer >= 1"),
        ({"probe": "uniform"}, "probe is 'uniform'; it must be one of 'rademacher', 'gaussian', 'sphere'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        jacobian_penalty(Equilibrium.at(torch.cos, torch.ones(1, 2)), **arguments)
