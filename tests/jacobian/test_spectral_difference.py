"""The penalty on the spectral radius by differences: its gradient, its cost, and the cells that only it can take."""

import numpy as np
import pytest
import torch
from jacobian.cells import linear, multiscale, seeded, transformer, two_layers
from jacobian.test_difference import Block, quiet
from matrices import turned
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadeq import Equilibrium, SpectralRegularizer, spectral_penalty


def penalty(eq, num_products=20, **options):
    return spectral_penalty(eq, num_products=num_products, estimator="difference", **options)


def exact_gradient(M):
    """Return the derivative of the squared spectral radius of a matrix, by numpy's eigenvectors on both sides."""
    values, vectors = np.linalg.eig(M.detach().numpy())
    largest = np.abs(values).argmax()
    x, y = vectors[:, largest], np.linalg.inv(vectors)[largest]
    return torch.from_numpy(2 * (values[largest].conj() * np.outer(y, x)).real)


def with_eigenvalues(*blocks, seed=0, dim=8):
    """Return a matrix far from normal with given blocks on its diagonal, and small eigenvalues beside them."""
    core = torch.block_diag(*(torch.tensor(block).double() for block in blocks))
    rest = torch.diag(torch.linspace(0.1, 0.4, dim - len(core)).double())
    basis = torch.randn(dim, dim, dtype=torch.float64, generator=seeded(seed)) + 4 * torch.eye(dim)
    return basis @ torch.block_diag(core, rest) @ torch.linalg.inv(basis)


def cosine(a, b):
    return nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


REAL, NEGATIVE, PAIR = [[0.9]], [[-1.1]], [[0.3, -0.8], [0.8, 0.3]]


@pytest.mark.parametrize("block", [REAL, NEGATIVE])
@pytest.mark.parametrize("seed", range(3))
def test_a_real_eigenvalue_has_its_exact_gradient(block, seed):
    M = with_eigenvalues(block, seed=seed).requires_grad_()
    z = torch.randn(3, 8, dtype=torch.float64)
    value = penalty(Equilibrium.at(lambda z: z @ M.T, z), generator=seeded(seed))
    (gradient,) = torch.autograd.grad(value, M)
    assert value.item() == pytest.approx(block[0][0] ** 2, rel=1e-5)
    assert (gradient - exact_gradient(M)).norm() < 1e-4 * gradient.norm()


@pytest.mark.parametrize("seed", range(3))
def test_a_complex_pair_has_its_exact_gradient_as_the_mean(seed):
    M = with_eigenvalues(PAIR, seed=seed).expand(4000, -1, -1).requires_grad_()
    eq = Equilibrium.at(linear, torch.randn(4000, 8, dtype=torch.float64, generator=seeded(seed)), M)
    value = penalty(eq, generator=seeded(seed))
    gradients = 4000 * torch.autograd.grad(value, M)[0]
    assert value.item() == pytest.approx(0.73, rel=1e-5)
    exact, standard_error = exact_gradient(M[0]), gradients.std(dim=0) / 4000**0.5
    assert ((gradients.mean(dim=0) - exact).abs() < 4.5 * standard_error).all()
    # One vector of the plane alone, always the same, would miss half.
    assert (gradients.mean(dim=0) - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize(("make", "least"), [(two_layers, 0.99), (transformer, 0.9), (multiscale, 0.3)])
def test_cells_have_the_value_and_about_the_gradient_of_the_exact_penalty(make, least):
    # Smooth; one with ReLUs; one with ReLUs throughout, whose kinks are noise in batches as small as this one.
    f, z, inputs = make()
    x = inputs[0].requires_grad_()
    values = [
        spectral_penalty(Equilibrium.at(f, z, x), num_products=80, estimator=estimator, generator=seeded())
        for estimator in ("difference", "vjp")
    ]
    assert values[0].item() == pytest.approx(values[1].item(), rel=1e-5)
    assert cosine(*(torch.autograd.grad(value, x)[0] for value in values)) > least


def test_it_costs_eight_evaluations_a_step_and_finds_more_with_the_vectors_of_the_step_before():
    M = turned(torch.diag(torch.linspace(0.1, 0.95, 60).double()), 3)
    points = []

    def f(z):
        points.append(z)
        return 1 + (z - 1) @ M.T

    eq, regularizer = (
        Equilibrium.at(f, torch.ones(1, 60).double()),
        SpectralRegularizer(weight=1.0, estimator="difference"),
    )
    values = [regularizer(eq, step=step).item() for step in range(30)]
    assert len(points) == 30 * 8
    assert values[0] < 0.9 * 0.95**2
    assert sum(values[-10:]) / 10 > 0.95 * 0.95**2


@pytest.mark.parametrize("block", [[[0.3, -1.2], [1.2, 0.3]], [[1.24]]])
def test_descent_with_few_products_lowers_the_radius_of_matrices_far_from_normal(block):
    M = with_eigenvalues(block, dim=20).requires_grad_()
    z = torch.randn(4, 20, dtype=torch.float64)
    regularizer, optimizer = SpectralRegularizer(weight=1.0, estimator="difference"), torch.optim.SGD([M], lr=0.01)
    for step in range(60):
        optimizer.zero_grad()
        regularizer(Equilibrium.at(lambda z: z @ M.T, z), step=step).backward()
        optimizer.step()
    assert torch.linalg.eigvals(M).abs().max() < 0.85


def test_a_state_of_zero_and_a_map_that_is_constant_are_no_exceptions():
    W = torch.tensor([[0.5, 0.0], [0.0, 0.1]], requires_grad=True)
    value = penalty(Equilibrium.at(lambda z: z @ W.T, torch.zeros(3, 2)))
    assert value.item() == pytest.approx(0.25, rel=1e-3)
    value.backward()
    assert W.grad[0, 0].item() == pytest.approx(1.0, rel=1e-3)
    assert penalty(Equilibrium.at(lambda z, x: x + 0 * z, torch.ones(2, 3), torch.ones(2, 3))).item() == 0


class TestCellsWithoutSecondDerivatives:
    def gradients(self, f, module, z, x, estimator):
        module.zero_grad()
        value = spectral_penalty(Equilibrium.at(f, z, x), num_products=40, estimator=estimator, generator=seeded())
        value.backward()
        return value.item(), torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    @pytest.fixture
    def blocks(self):
        fused, plain = Block(fused=True), Block(fused=False)
        plain.load_state_dict(fused.state_dict())
        z, x = torch.randn(2, 64, 6, 4)
        return fused, (z, x), self.gradients(plain, plain, z, x, "vjp")

    def check(self, found, expected, rel=1e-2, least=0.9):
        assert found[0] == pytest.approx(expected[0], rel=rel)
        assert cosine(found[1], expected[1]) > least

    @quiet
    def test_fused_attention_checkpointing_and_compiled_code(self, blocks):
        fused, (z, x), expected = blocks
        with pytest.raises(RuntimeError, match="no second derivative"):
            self.gradients(fused, fused, z, x, "vjp")
        again = lambda z, x: checkpoint(fused, z, x, use_reentrant=False)  # noqa: E731
        for f in (fused, again, torch.compile(fused, backend="aot_eager")):
            self.check(self.gradients(f, fused, z, x, "difference"), expected)
        with pytest.raises(RuntimeError, match="use_reentrant=False"):
            self.gradients(
                lambda z, x: checkpoint(fused, z, x, use_reentrant=True), fused, z, x.requires_grad_(), "difference"
            )

    def test_half_precision_under_autocast(self):
        cell, z = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64, bias=False)), torch.randn(64, 64)
        expected = self.gradients(lambda z, x: cell(z) + x, cell, z, 0 * z, "vjp")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = self.gradients(lambda z, x: cell(z) + x, cell, z, 0 * z, "difference")
        self.check(found, expected, rel=0.05, least=0.8)

    def test_dropout_has_one_mask(self):
        # Diagonal, with eigenvalues 0 and 2.
        eq = Equilibrium.at(nn.Dropout(0.5), torch.randn(4, 50, dtype=torch.float64))
        assert penalty(eq).item() == pytest.approx(4, rel=1e-4)
