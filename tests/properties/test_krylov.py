"""The Krylov basis of matrices that are close to a multiple of the identity is orthonormal."""

import pytest
import torch
from torch import Tensor

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_the_basis_is_orthonormal_and_the_hessenberg_matrix_that_of_the_operator(name, dtype):
    M = MATRICES[name](128).to(dtype)
    truth, eps = M.double(), torch.finfo(dtype).eps
    size = torch.linalg.matrix_norm(truth, 2)
    space = Arnoldi(torch.randn(2, 128, dtype=dtype), NUM_STEPS[-1])
    for step in range(1, NUM_STEPS[-1] + 1):
        space.extend(torch.einsum("bij,bj->bi", M, space.newest))
        if step in NUM_STEPS:
            basis = space.basis.double()
            gram = basis @ basis.mT
            # Vectors after the last direction of a space are zero.
            is_there = gram.diagonal(dim1=1, dim2=2) > 0.5
            assert ((gram - torch.diag_embed(is_there.double())).abs().amax(dim=(1, 2)) <= FEW_EPS * eps).all(), step
            images = torch.einsum("bij,bkj->bki", truth, basis[:, :-1])
            told = torch.einsum("bmk,bmi->bki", space.hessenberg.double(), basis)
            assert ((images - told).norm(dim=2).amax(dim=1) <= (FEW_EPS + 2) * eps * size).all(), step
