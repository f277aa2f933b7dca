"""The dominant eigenvalue of the Jacobian with its vectors on both sides, by products only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..solvers._krylov import Arnoldi
from ._products import ScaledJacobian


def dominant_eigenvectors(
    point: ScaledJacobian, start: Tensor, num_products: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the (B,) Ritz value of largest modulus of J / scale, and its (B, D) unit vectors on both sides, complex.

    The last of four is the (B,) relative residual of the left vector, ‖yᵀJ - λ yᵀ‖ / |λ|, or a bound of it.

    The left vector y is one of Jᵀ: yᵀJ = λ yᵀ. Its space starts with the right one, which it equals if J is normal.

    Args:
        point: Products with J.
        start: (B, D) first vectors of the space of J.
        num_products: Products to spend on both spaces.
    """
    right = Arnoldi(start, min(num_products - num_products // 2, start.shape[1]))
    while right.size < right.capacity:
        right.extend(point.jvp(right.newest))
    values, vectors, failed = _ritz_pairs(right)
    largest = values.abs().argmax(dim=1)
    value, x = _take(values, vectors, largest, right)
    left = Arnoldi(x.real, min(num_products // 2, start.shape[1]))
    while left.size < left.capacity:
        left.extend(point.vjp(left.newest))
    values, vectors, also_failed = _ritz_pairs(left)
    nearest = (values - value.to(values)[:, None]).abs().argmin(dim=1)
    found, y = _take(values, vectors, nearest, left)
    last = left.hessenberg[:, left.size :].cpu().to(vectors)
    beyond = (last @ vectors)[:, 0].abs().take_along_dim(nearest.cpu()[:, None], dim=1)[:, 0].to(value.real)
    residual = ((found - value).abs() + beyond) / value.abs()
    return torch.where((failed | also_failed).to(value.device), math.nan, value), x, y, residual


def _ritz_pairs(space: Arnoldi) -> tuple[Tensor, Tensor, Tensor]:
    """Return (B, size) Ritz values, their (B, size, size) vectors in the basis, and (B,) where there are none.

    Small and often ill-conditioned: in double precision, and not where eigenvalue solvers are slow.
    """
    square = space.hessenberg[:, : space.size].cpu().double()
    failed = ~square.isfinite().flatten(1).all(dim=1)
    return *torch.linalg.eig(square.nan_to_num(0.0, 0.0, 0.0)), failed


def _take(values: Tensor, vectors: Tensor, index: Tensor, space: Arnoldi) -> tuple[Tensor, Tensor]:
    """Return one Ritz value of each sample, and its vector in full."""
    dtype, device = torch.complex(space.norm, space.norm).dtype, space.norm.device
    value = values.take_along_dim(index[:, None], dim=1)[:, 0]
    parts = vectors.take_along_dim(index[:, None, None], dim=2)[:, :, 0].to(device, dtype)
    basis = space.basis[:, : space.size]
    full = torch.complex(*(torch.einsum("bk,bkd->bd", part, basis) for part in (parts.real, parts.imag)))
    return value.to(device, dtype), full
