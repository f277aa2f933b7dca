"""The penalty on the spectral radius: value, gradient by left and right eigenvectors, and the regularizer."""

import math

import numpy as np
import pytest
import torch
from jacobian.cells import dense_jacobians, linear, matrices, multiscale, one_layer, seeded, transformer, two_layers
from matrices import jordan, turned

from steadeq import Equilibrium, SpectralRegularizer, jacobian_penalty, spectral_penalty, spectral_radius


def rotation(angle):
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def of_matrix(M, batch=1):
    """Return an equilibrium whose Jacobian is M."""
    return Equilibrium.at(lambda z: z @ M.T, torch.zeros(batch, M.shape[0], dtype=M.dtype))


def squared_radius(M):
    return float(np.abs(np.linalg.eigvals(M.detach().numpy())).max()) ** 2


def difference_quotient(function, M, direction, step=1e-6):
    return (function(M + step * direction) - function(M - step * direction)) / (2 * step)


@pytest.mark.parametrize("make", [one_layer, two_layers, transformer, multiscale])
def test_it_is_the_mean_square_of_the_largest_absolute_eigenvalues(make):
    f, z, inputs = make()
    exact = torch.linalg.eigvals(dense_jacobians(f, z, inputs)).abs().amax(dim=1).square().mean().item()
    found = spectral_penalty(Equilibrium.at(f, z, *inputs), num_products=120, generator=seeded()).item()
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dim", [2, 3, 6, 20])
@pytest.mark.parametrize("seed", range(4))
def test_its_gradient_is_that_of_the_eigenvalue_for_matrices_that_are_not_normal(dim, seed):
    # Real eigenvalues and complex pairs, as chance has it.
    generator = seeded(seed)
    M = torch.randn(dim, dim, dtype=torch.float64, generator=generator).requires_grad_()
    direction = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
    value = spectral_penalty(of_matrix(M), num_products=2 * dim, generator=generator)
    (gradient,) = torch.autograd.grad(value, M)
    expected = difference_quotient(squared_radius, M.detach(), direction)
    assert value.item() == pytest.approx(squared_radius(M))
    assert (gradient * direction).sum().item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_its_gradient_through_a_cell_is_that_of_finite_differences():
    generator = seeded()
    W = torch.randn(6, 6, dtype=torch.float64, generator=generator).requires_grad_()
    z, x = torch.randn(2, 3, 6, dtype=torch.float64, generator=generator)

    def value(W, x):
        eq = Equilibrium.at(lambda z, x: torch.tanh(z @ W.T + x), z, x)
        return spectral_penalty(eq, num_products=12, generator=seeded())

    assert torch.autograd.gradcheck(value, (W, x.requires_grad_()))


def test_the_quotient_of_the_right_vector_alone_would_be_wrong():
    M = torch.tensor([[0.9, 3.0], [0.0, 0.5]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(spectral_penalty(of_matrix(M), num_products=4), M)
    # x = (1, 0), y = (1, 7.5): the entry that x alone does not see is the one that matters most.
    torch.testing.assert_close(gradient, 2 * 0.9 * torch.tensor([[1.0, 0.0], [7.5, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("angle", [0.3, math.pi / 2, 2.0, 3.0])
def test_a_rotation_has_its_factor_and_shrinks_along_its_gradient(angle):
    M = (0.9 * rotation(angle)).requires_grad_()
    value = spectral_penalty(of_matrix(M), num_products=4)
    assert value.item() == pytest.approx(0.81)
    (gradient,) = torch.autograd.grad(value, M)
    # Growing the matrix by a factor grows the square by its square, whatever the vectors are.
    assert (gradient * M).sum().item() == pytest.approx(2 * 0.81)
    assert squared_radius(M - 0.01 * gradient) < 0.81


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_defective_matrix_has_a_bounded_gradient_that_lowers_its_diagonal(size, seed):
    M = turned(jordan(size, 0.8), seed).requires_grad_()
    value = spectral_penalty(of_matrix(M), num_products=2 * size, generator=seeded(seed))
    # Rounding moves the eigenvalue by about a root of it.
    assert value.item() == pytest.approx(0.64, rel=0.02)
    (gradient,) = torch.autograd.grad(value, M)
    assert gradient.norm() <= 2 * 0.85 * math.hypot(1, 10)
    assert (gradient * torch.eye(size)).sum().item() == pytest.approx(2 * 0.8, rel=0.02)


def test_a_repeated_eigenvalue_has_the_gradient_of_one_of_its_vectors():
    M = (0.7 * torch.eye(5, dtype=torch.float64)).requires_grad_()
    value = spectral_penalty(of_matrix(M), num_products=10)
    assert value.item() == pytest.approx(0.49)
    (gradient,) = torch.autograd.grad(value, M)
    assert torch.linalg.svdvals(gradient).tolist() == pytest.approx([1.4, 0, 0, 0, 0], abs=1e-9)


def test_few_products_find_an_eigenvalue_that_stands_out():
    M = matrices(batch=1, dim=200)[0]
    M = 0.5 * M + 1.3 * torch.outer(*torch.linalg.qr(torch.randn(200, 1).double())[0].expand(2, 200, 1).squeeze(2))
    assert spectral_penalty(of_matrix(M)).item() == pytest.approx(squared_radius(M), rel=0.02)


def test_a_sample_that_is_not_finite_is_reported_and_nothing_is_raised():
    M = matrices(batch=2)
    M[1, 0, 0] = math.nan
    assert spectral_penalty(Equilibrium.at(linear, torch.ones(2, 12, dtype=M.dtype), M)).isnan()


def test_autocast_is_for_the_cell_alone():
    cell, z = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()), torch.randn(4, 32)
    eq = Equilibrium.at(cell, z)
    expected = spectral_penalty(eq, num_products=64).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = spectral_penalty(eq, num_products=64)
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected, rel=0.03)
    assert cell[0].weight.grad.isfinite().all()


class TestRegularizer:
    @pytest.mark.parametrize("estimator", ["vjp", "difference"])
    def test_kept_vectors_are_part_of_a_checkpoint_and_another_batch_and_a_run_begin_anew(self, estimator):
        M = matrices(batch=1, dim=40)[0]
        eq, other = (Equilibrium.at(lambda z: z @ M.T, torch.ones(size, 40).double()) for size in (2, 3))
        first, second, fresh = (
            SpectralRegularizer(weight=1.0, num_products=4, keep=True, estimator=estimator) for _ in range(3)
        )
        first(eq, step=0)
        second.load_state_dict(first.state_dict())
        assert first(eq, step=1, generator=seeded()) == second(eq, step=1, generator=seeded())
        assert first.for_run(num_steps=10, steps_per_epoch=5).state_dict()["vectors"] is None
        assert first(other, step=2, generator=seeded()) == fresh(other, step=2, generator=seeded())

    def test_it_tames_a_cell_whose_frobenius_norm_is_small_already(self):
        # One direction grows under a skip connection that shrinks all others: a mean over directions does not see it.
        W = torch.diag(torch.tensor([1.2, *99 * [0.3]], dtype=torch.float64)).requires_grad_()
        eq, regularizer = of_matrix(W), SpectralRegularizer(weight=1.0)
        assert jacobian_penalty(eq).item() < 0.11
        optimizer = torch.optim.SGD([W], lr=0.05)
        for step in range(5):
            optimizer.zero_grad()
            regularizer(eq, step=step).backward()
            optimizer.step()
        # Each step multiplies it by 1 - 2 lr, and leaves the others alone.
        assert spectral_radius(eq).value.item() == pytest.approx(1.2 * 0.9**5, rel=1e-3)
        assert W.diagonal()[1:].detach().numpy() == pytest.approx(0.3, rel=1e-3)

    def test_kept_vectors_find_more_than_fresh_ones(self):
        # Close eigenvalues, for which two products on either side do not suffice.
        eq = of_matrix(turned(torch.diag(torch.linspace(0.1, 0.95, 60).double()), 3))
        fresh, kept = (SpectralRegularizer(weight=1.0, num_products=4, keep=keep) for keep in (False, True))
        last = [[r(eq, step=step).item() for step in range(30)][-10:] for r in (fresh, kept)]
        assert sum(last[0]) / 10 < 0.8 * 0.95**2
        assert sum(last[1]) / 10 > 0.95 * 0.95**2

    def test_kept_vectors_do_not_hide_an_eigenvalue_that_grows(self):
        M = torch.diag(torch.tensor([0.9, *8 * [0.1]]).double())
        regularizer = SpectralRegularizer(weight=1.0, num_products=6, keep=True)
        assert [regularizer(of_matrix(M), step=step).item() for step in range(10)][-1] == pytest.approx(0.81)
        M[1, 1] = 1.1
        assert regularizer(of_matrix(M), step=10).item() == pytest.approx(1.21, rel=1e-3)
