import math

import numpy as np
import pytest
import torch

from steadeq import frobenius_norm, operator_norm, spectral_radius


def linear(z, M):
    return torch.einsum("bij,bj->bi", M, z)


def radius(M, **options):
    return spectral_radius(linear, torch.zeros(M.shape[:2], dtype=M.dtype), M, **options)


def true_radius(M):
    return torch.as_tensor(np.abs(np.linalg.eigvals(M.double().numpy())).max(-1), dtype=M.dtype)


def orthogonal(batch, n):
    return torch.linalg.qr(torch.randn(batch, n, n, dtype=torch.float64))[0]


def with_dominant_pair(batch, n, rho=0.95, angle=1.2):
    """Non-normal, its bulk within 0.6 and one complex pair of modulus rho."""
    T = torch.randn(batch, n, n, dtype=torch.float64) * 0.5 / math.sqrt(n)
    T[:, 2:, :2] = 0
    c, s = rho * math.cos(angle), rho * math.sin(angle)
    T[:, :2, :2] = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    T[:, :2, 2:] = torch.randn(batch, 2, n - 2)
    Q = orthogonal(batch, n)
    return Q @ T @ Q.mT


def defective(batch, n, rho=0.8):
    T = torch.diag_embed(torch.full((batch, n), 0.7 * rho, dtype=torch.float64))
    T[:, 0, 0] = T[:, 1, 1] = rho
    T[:, 0, 1] = 1
    Q = orthogonal(batch, n)
    return Q @ T @ Q.mT


def circular(batch, n):
    return torch.randn(batch, n, n, dtype=torch.float64) / math.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [3, 20, 100])
@pytest.mark.parametrize("make", [with_dominant_pair, defective, circular])
def test_arnoldi_is_within_one_percent_and_its_error_covers_the_truth(make, n, dtype):
    M = make(8, n).to(dtype)
    exact = true_radius(M)
    estimate = radius(M)
    assert ((estimate.value - exact).abs() <= 0.01 * exact).all()
    assert ((estimate.value - exact).abs() <= estimate.error).all()


def test_arnoldi_restarts_when_its_memory_is_small():
    M = with_dominant_pair(4, 120)
    estimate = radius(M, memory=8, max_products=200)
    torch.testing.assert_close(estimate.value, true_radius(M), rtol=0.01, atol=0)


def test_arnoldi_says_so_when_it_has_not_converged():
    M = circular(4, 200)
    estimate = radius(M, max_products=8)
    assert estimate.num_products == 8
    assert (estimate.error > 0.01 * estimate.value).all()


def test_growth_of_the_power_method_is_right_where_the_rayleigh_quotient_is_not():
    turn = torch.tensor([[0.0, -0.9], [0.9, 0.0]], dtype=torch.float64).expand(2, 2, 2)
    assert radius(turn, method="power").value == pytest.approx([0.9, 0.9])
    rayleigh = radius(turn, method="rayleigh")
    assert rayleigh.value.max() < 1e-6
    assert (rayleigh.error > 0.8).all()
    assert radius(turn).value == pytest.approx([0.9, 0.9])


def test_power_method_is_within_its_own_error():
    M = with_dominant_pair(8, 60)
    estimate = radius(M, method="power", max_products=100)
    assert ((estimate.value - true_radius(M)).abs() <= estimate.error + 1e-3).all()


def test_rayleigh_agrees_on_a_symmetric_jacobian():
    Q = orthogonal(3, 15)
    M = Q @ torch.diag(torch.linspace(-0.3, 0.9, 15, dtype=torch.float64)) @ Q.mT
    assert radius(M, method="rayleigh").value == pytest.approx([0.9] * 3, rel=1e-3)


def test_radius_operator_norm_and_frobenius_norm_are_ordered():
    M = circular(6, 40)
    z = torch.zeros(6, 40, dtype=M.dtype)
    rho, sigma = radius(M), operator_norm(linear, z, M)
    frobenius = frobenius_norm(linear, z, M, num_probes=64)
    assert (rho.value - rho.error <= sigma.value + sigma.error).all()
    assert (sigma.value <= frobenius.value + frobenius.error).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [2, 30, 120])
def test_operator_norm_is_a_lower_bound_within_its_error(n, dtype):
    M = circular(5, n).to(dtype)
    exact = torch.linalg.matrix_norm(M, 2)
    estimate = operator_norm(linear, torch.zeros(5, n, dtype=dtype), M)
    rounding = 10 * torch.finfo(dtype).eps
    assert (estimate.value <= exact * (1 + rounding)).all()
    assert (exact - estimate.value <= 0.01 * exact).all()
    assert (exact - estimate.value <= estimate.error + rounding * exact).all()


def test_the_jacobian_is_that_of_f_at_z_for_nested_states_and_any_cell():
    cell = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Tanh()).double()
    z = torch.randn(3, 6, dtype=torch.float64)
    J = torch.stack([torch.autograd.functional.jacobian(cell, row) for row in z])

    def f(state):
        out = cell(torch.cat([state["a"], state["b"][0]], dim=1))
        return {"a": out[:, :2], "b": [out[:, 2:]]}

    state = {"a": z[:, :2], "b": [z[:, 2:]]}
    torch.testing.assert_close(spectral_radius(f, state).value, true_radius(J))
    torch.testing.assert_close(operator_norm(f, state).value, torch.linalg.matrix_norm(J, 2))


def test_a_map_that_does_not_depend_on_z_has_radius_zero():
    estimate = spectral_radius(lambda z: torch.ones_like(z), torch.zeros(2, 5))
    assert estimate.value.tolist() == [0, 0]
    assert operator_norm(lambda z: torch.ones_like(z), torch.zeros(2, 5)).value.tolist() == [0, 0]


def test_a_nan_jacobian_is_reported_and_leaves_its_neighbors_alone():
    M = with_dominant_pair(3, 20)
    broken = M.clone()
    broken[1, 0, 0] = math.nan
    generator = torch.Generator().manual_seed(0)
    clean = radius(M, generator=generator)
    generator.manual_seed(0)
    estimate = radius(broken, generator=generator)
    assert estimate.error[1].isinf()
    assert torch.equal(estimate.value[[0, 2]], clean.value[[0, 2]])


@pytest.mark.parametrize("method", ["arnoldi", "power", "rayleigh"])
def test_the_budget_of_products_is_kept(method):
    M = circular(2, 50)
    products = 0

    def f(z, M):
        image = linear(z, M)

        def count(_):
            nonlocal products
            products += 1

        image.register_hook(count)
        return image

    estimate = spectral_radius(f, torch.zeros(2, 50, dtype=M.dtype), M, method=method, max_products=7)
    assert products == estimate.num_products == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "lanczos"}, "method is 'lanczos'; it must be one of 'arnoldi', 'power', 'rayleigh'"),
        ({"max_products": 0}, "max_products is 0; it must be an integer >= 1"),
        ({"tol": -1.0}, "tol is -1.0; it must be >= 0"),
        ({"memory": 1}, "memory is 1; it must be an integer >= 2"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        spectral_radius(torch.cos, torch.ones(1, 2), **arguments)
