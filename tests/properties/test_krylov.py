"""The Krylov basis of every cell, and of matrices that are close to a multiple of the identity, is orthonormal."""

import functools

import pytest
import torch
from properties.cells import BATCH, KINDS, NAMES, case, jacobian, norms, sigma
from torch import Tensor

from steadeq.jacobian._products import linearize
from steadeq.solvers._krylov import Arnoldi

NUM_STEPS = (10, 20, 40, 60)
FEW_EPS = 30
"""Epsilons by which inner products of basis vectors may be off."""


def gaussian(n: int) -> Tensor:
    """Return two matrices of radius 1, up to a few percent."""
    return torch.randn(2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) / n**0.5


def shifted(c: float, r: float):
    return lambda n: c * torch.eye(n, dtype=torch.float64) + r * gaussian(n)


MATRICES = {
    "0.7I+0.2R": shifted(0.7, 0.2),
    "-0.9I+0.3R": shifted(-0.9, 0.3),
    "0.8I+0.15R": shifted(0.8, 0.15),
    "0.9I+0.1R": shifted(0.9, 0.1),
    "1.5I+0.2R": shifted(1.5, 0.2),
    "0.99I+0.001R": shifted(0.99, 0.001),
    "clustered": lambda n: torch.diag(1 - torch.arange(n, dtype=torch.float64) / 1000).expand(2, n, n),
    "I": lambda n: torch.eye(n, dtype=torch.float64).expand(2, n, n),
    "rank 5": lambda n: gaussian(n)[:, :, :5] @ gaussian(n)[:, :5],
    "shift": lambda n: torch.diag(torch.ones(n - 1, dtype=torch.float64), -1).expand(2, n, n),
}


def check(operator, start: Tensor, truth: Tensor, size: Tensor, eps: float) -> None:
    """Check the basis as it grows, and in the end that the operator is what the Hessenberg matrix says.

    Args:
        operator: What is applied to vectors.
        start: The first vectors.
        truth: (B, D, D) the same operator in float64.
        size: (B,) its norms.
        eps: Of the products.
    """
    own = torch.finfo(start.dtype).eps
    space = Arnoldi(start, NUM_STEPS[-1])
    for step in range(1, NUM_STEPS[-1] + 1):
        space.extend(operator(space.newest))
        if step in NUM_STEPS:
            basis = space.basis.double()
            gram = basis @ basis.mT
            # Vectors after the last direction of a space are zero.
            is_there = gram.diagonal(dim1=1, dim2=2) > 0.5
            assert ((gram - torch.diag_embed(is_there.double())).abs().amax(dim=(1, 2)) <= FEW_EPS * own).all(), step
            images = torch.einsum("bij,bkj->bki", truth, basis[:, :-1])
            told = torch.einsum("bmk,bmi->bki", space.hessenberg.double(), basis)
            assert ((images - told).norm(dim=2).amax(dim=1) <= (FEW_EPS * own + 2 * eps) * size).all(), step


@functools.cache
def matrix(name: str, n: int) -> Tensor:
    return MATRICES[name](n)


@functools.cache
def size(name: str, n: int) -> Tensor:
    return torch.linalg.matrix_norm(matrix(name, n), 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n", [128, 512])
@pytest.mark.parametrize("name", MATRICES)
def test_of_a_matrix(name, n, dtype):
    truth = matrix(name, n).to(dtype).double()
    M = truth.to(dtype)
    start = torch.randn(2, n, dtype=dtype)
    check(lambda v: torch.einsum("bij,bj->bi", M, v), start, truth, size(name, n), torch.finfo(dtype).eps)


# Under autocast vectors and products are those of states in bfloat16.
PRECISIONS = ("float64", "float32", "bfloat16")
CASES = [(*pair, precision) for pair in NAMES for precision in PRECISIONS if precision in KINDS[pair[0]].precisions]


@pytest.mark.parametrize(("name", "stage", "precision"), CASES)
def test_of_a_cell(name, stage, precision):
    cell = case(name, stage, precision)
    with cell.computing():
        point = linearize(cell.equilibrium)
    start = torch.randn(BATCH, cell.dim, dtype=point.layout.dtype)
    truth = jacobian(name, stage, precision).mT
    assert (norms(start) > 0).all()
    with torch.no_grad():
        check(point.vjp, start, truth, sigma(name, stage, precision), 0.0 if precision == "float64" else cell.eps)
