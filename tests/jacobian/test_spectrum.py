import functools
import math

import numpy as np
import pytest
import torch
from jacobian.cells import linear
from matrices import MATRICES, convection
from matrices import true_radius as known_radius

from steadeq import Equilibrium, Estimate, frobenius_norm, operator_norm, spectral_radius
from steadeq.solvers._krylov import Arnoldi


def radius(M, **options):
    return spectral_radius(Equilibrium.at(linear, torch.zeros(M.shape[:2], dtype=M.dtype), M), **options)


def shared(z, matrix):
    """Multiply by one matrix for all samples, handed over as a closure."""
    return z @ matrix().T


def starts(M, count, dtype=torch.float64):
    """Return a state of as many samples as there are to be starts, and what `shared` takes after it."""
    return torch.zeros(count, len(M), dtype=dtype), lambda: M.to(dtype)


def true_radius(M):
    return torch.as_tensor(np.abs(np.linalg.eigvals(M.double().numpy())).max(-1), dtype=M.dtype)


def circular(batch, n):
    return torch.randn(batch, n, n, dtype=torch.float64) / math.sqrt(n)


SUBSET = {
    "benign": [
        *("gaussian 30", "gaussian 100", "gaussian of mean 0.5, 100", "symmetric 100", "normal pairs 100"),
        *("orthogonal 10", "cyclic shift 30", "stochastic 50", "clustered at two values 100", "opposite signs 100"),
        *("coupled 100", "rank 1, 100", "companion, random roots 10", "clement 50", "kahan 30", "frank 12"),
        *("tolosa 20", "causal 16x8", "causal, one width 64x1", "tanh net, skip 0, 128", "tanh net, skip 0.8, 128"),
        *("1.5 I + 0.2 R 100", "0.9 I + 0.001 R 100", "identity 50", "zero 20", "defective pair 50"),
    ],
    "far from normal": [
        *("convection 1-D, 40", "convection 20x20", "grcar 30", "grcar 100", "triangular 20", "triangular 50"),
        *("jordan 10", "jordan 50", "jordan 50, link 0.1", "shift 30", "shift 100", "companion of order 10, one root"),
    ],
}
"""What is quick of the matrices of benchmarks/spectra.py."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("group", SUBSET)
def test_errors_cover_the_truth_for_nineteen_of_twenty_starts(group, dtype):
    covered, claims, false_claims = [], [], []
    for name in SUBSET[group]:
        M = MATRICES[name]()
        exact = known_radius(M, name)
        estimate = spectral_radius(
            Equilibrium.at(shared, *starts(M, 6, dtype)), generator=torch.Generator().manual_seed(3)
        )
        off = (estimate.value.double() - exact).abs() - 20 * torch.finfo(dtype).eps * exact
        covered.append(off <= estimate.error)
        claims.append(estimate.error <= 0.01 * estimate.value)
        false_claims.append(claims[-1] & (off > 0.01 * exact))
    assert torch.cat(covered).double().mean() >= 0.95
    assert torch.cat(false_claims).double().mean() <= 0.01
    # Infinite errors cover everything; that is not how benign ones are covered.
    assert group != "benign" or torch.cat(claims).double().mean() >= 0.7


@pytest.mark.parametrize("name", ["shift 30", "shift 100", "jordan 50", "triangular 50", "grcar 100"])
def test_an_eigenvalue_that_rounding_moves_far_has_an_infinite_error(name):
    assert spectral_radius(Equilibrium.at(shared, *starts(MATRICES[name](), 4, torch.float32))).error.isinf().all()


def test_the_condition_number_is_that_of_the_whole_matrix():
    # The Krylov space of 60 products sees a pseudo-eigenvalue of residual 1e-3, well-conditioned within the space.
    M = convection(40, 100.0, dims=2)
    estimate = spectral_radius(Equilibrium.at(shared, *starts(M, 2)), max_products=100)
    assert ((estimate.value - 0.8331).abs() <= estimate.error).all()


def test_a_restart_keeps_the_hessenberg_matrix_that_of_the_operator():
    M = circular(2, 30)
    space = Arnoldi(torch.randn(2, 30, dtype=M.dtype), 12)

    def extend(count):
        for _ in range(count):
            space.extend(torch.linalg.vecdot(M, space.newest[:, None]))

    extend(12)
    values, vectors = torch.linalg.eig(space.hessenberg[:, :12])
    real = torch.where(values.imag[:, None] < 0, vectors.imag, vectors.real)
    order = values.abs().argsort(dim=1, descending=True, stable=True)[:, None]
    is_whole = values.take_along_dim(order[:, 0], dim=1)[:, 5, None, None].imag <= 0
    kept = torch.linalg.qr(real.take_along_dim(order, dim=2)[:, :, :6])[0]
    kept[:, :, 5:] *= is_whole
    space.restart(kept)
    extend(4)
    basis, size = space.basis, space.size
    assert size == 10
    images = torch.einsum("bij,bkj->bki", M, basis[:, :size])
    torch.testing.assert_close(images, space.hessenberg.mT @ basis)
    gram = basis @ basis.mT
    torch.testing.assert_close(gram, torch.diag_embed(gram.diagonal(dim1=1, dim2=2).round()))


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


@pytest.mark.parametrize("scale", [1e-34, 1e-20, 1e20, 1e35])
def test_estimates_do_not_depend_on_the_scale_of_the_jacobian(scale):
    M, z = circular(3, 40).float(), torch.zeros(3, 40)
    exact = {
        spectral_radius: true_radius(M).double(),
        operator_norm: torch.linalg.matrix_norm(M.double(), 2),
        frobenius_norm: torch.linalg.matrix_norm(M.double()),
    }
    for estimator, truth in exact.items():
        found = estimator(Equilibrium.at(linear, z, M * scale))
        slack = 0.2 if estimator is frobenius_norm else 0.01
        assert ((found.value.double() / scale - truth).abs() <= slack * truth).all()
        assert (found.error.double() / scale <= slack * truth).all()


@pytest.mark.parametrize(("dtype", "max_products"), [(torch.float64, 5), (torch.float32, 30)])
def test_the_operator_norm_is_covered_and_no_radius_is_larger_whatever_the_matrix_is(dtype, max_products):
    covered = []
    for name in [*SUBSET["benign"], *SUBSET["far from normal"]]:
        M = MATRICES[name]()
        exact = torch.linalg.matrix_norm(M, 2)
        eq = Equilibrium.at(shared, *starts(M, 2, dtype))
        rho = spectral_radius(eq, max_products=max_products, memory=25).value
        assert (rho <= exact * (1 + 20 * torch.finfo(dtype).eps)).all(), name
        found = operator_norm(Equilibrium.at(shared, *starts(M, 8, dtype)), generator=torch.Generator().manual_seed(4))
        rounding = 20 * torch.finfo(dtype).eps * exact
        assert (found.value.double() <= exact + rounding).all(), name
        covered.append(found.value.double() + found.error + rounding >= exact)
    assert torch.cat(covered).double().mean() >= 0.97


def test_the_operator_norm_is_not_missed_when_the_start_hardly_sees_it():
    # Two singular values, of which starts have almost nothing along the larger one more often than not.
    M = torch.diag(torch.cat([torch.full((999,), 0.5), torch.tensor([0.6])])).double()
    found = operator_norm(Equilibrium.at(shared, *starts(M, 400)), max_products=4)
    assert (found.value + found.error >= 0.6).double().mean() >= 0.95


def test_a_nan_jacobian_is_reported_and_leaves_its_neighbors_alone():
    M = circular(3, 20)
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

    # The first time that a cell is seen, one more product tells whether its samples see each other.
    for count in (8, 7):
        products = 0
        eq = Equilibrium.at(f, torch.zeros(2, 50, dtype=M.dtype), M)
        estimate = spectral_radius(eq, method=method, max_products=7)
        assert products in (7, count)
        assert estimate.num_products == 7


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
        spectral_radius(Equilibrium.at(torch.cos, torch.ones(1, 2)), **arguments)


def test_an_estimate_is_printed_in_one_line():
    matrix = torch.diag(torch.tensor([0.5, -0.25, 0.1], dtype=torch.float64))
    eq = Equilibrium.at(lambda z: z @ matrix, torch.ones(2, 3, dtype=torch.float64))
    estimate = spectral_radius(eq)
    text = str(estimate)
    assert "\n" not in text
    assert text.startswith("0.5 on average over 2 samples, 0.5 at most; error ")
    assert text.endswith(f"{estimate.num_products} products")
    alone = Estimate(value=torch.tensor([2.0]), error=torch.tensor([torch.inf]), num_products=3)
    assert str(alone) == "2; error unknown for 1; 3 products"


@pytest.mark.parametrize(
    "estimate",
    [frobenius_norm, operator_norm, spectral_radius, functools.partial(spectral_radius, method="power")],
    ids=["frobenius", "operator norm", "arnoldi", "power"],
)
@pytest.mark.parametrize("kind", ["permutation", "rotation", "diagonal"])
def test_in_single_precision_errors_cover_rounding(estimate, kind):
    """Of maps whose estimates have no other error."""
    covered = 0
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        if kind == "permutation":
            W = torch.eye(64)[torch.randperm(64, generator=random)]
        elif kind == "rotation":
            W = 0.9 * torch.linalg.qr(torch.randn(16, 16, generator=random))[0]
        else:
            W = torch.diag(torch.linspace(0.1, 1, 32).pow(8) * 0.9 * torch.rand(1, generator=random))
        wide = W.double()
        if estimate is frobenius_norm:
            truth = torch.linalg.matrix_norm(wide)
        elif estimate is operator_norm:
            truth = torch.linalg.matrix_norm(wide, 2)
        else:
            truth = torch.linalg.eigvals(wide).abs().amax()
        found = estimate(Equilibrium.at(lambda z, W=W: z @ W.T, torch.zeros(1, len(W))), generator=random)
        covered += bool((found.value - truth).abs() <= found.error)
    assert covered >= 19
