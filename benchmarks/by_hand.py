"""The methods as one would write them for a single use: the least that they take in Python.

They measure relative residuals and do nothing else: no tolerance, no best iterate, no failing or dependent columns, no
second orthogonalization, no statistics, states that are matrices. What they cost is what the methods cost where every
kernel is launched from Python; what a library costs beyond that is its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Matrix = Callable[[Tensor], Tensor]
"""A map of (B, D) matrices."""


def relative_residual(g: Tensor, fz: Tensor) -> Tensor:
    return torch.linalg.vector_norm(g, dim=1) / torch.linalg.vector_norm(fz, dim=1)


def picard(f: Matrix, z: Tensor, num_evals: int) -> tuple[Tensor, list[Tensor]]:
    residuals = []
    for _ in range(num_evals):
        fz = f(z)
        residuals.append(relative_residual(fz - z, fz))
        z = fz
    return z, residuals


def anderson(f: Matrix, z: Tensor, num_evals: int, columns: int = 5) -> tuple[Tensor, list[Tensor]]:
    batch_size, dim = z.shape
    dg, df = z.new_empty(batch_size, columns, dim), z.new_empty(batch_size, columns, dim)
    gram, residuals = z.new_zeros(batch_size, columns, columns), []
    fz_last = g_last = z
    for k in range(num_evals):
        fz = f(z)
        g = fz - z
        residuals.append(relative_residual(g, fz))
        if k == 0:
            z = fz
        else:
            slot, size = (k - 1) % columns, min(k, columns)
            newest = torch.sub(g, g_last, out=dg[:, slot])
            torch.sub(fz, fz_last, out=df[:, slot])
            window = dg[:, :size].mT
            row = torch.bmm(newest.unsqueeze(1), window).squeeze(1)
            gram[:, slot, :size] = row
            gram[:, :size, slot] = row
            right = torch.bmm(g.unsqueeze(1), window).mT
            weights = torch.cholesky_solve(right, torch.linalg.cholesky_ex(gram[:, :size, :size])[0])
            z = torch.baddbmm(fz.unsqueeze(1), weights.mT, df[:, :size], alpha=-1).squeeze(1)
        fz_last, g_last = fz, g
    return z, residuals


def broyden(f: Matrix, z: Tensor, num_evals: int) -> tuple[Tensor, list[Tensor]]:
    """Good Broyden: the inverse is -(I + sum of left_i right_iᵀ), which Sherman and Morrison's formula adds to."""
    batch_size, dim = z.shape
    left, right = (z.new_empty(batch_size, num_evals, dim) for _ in range(2))
    residuals = []
    g_last = step = z

    def inverse(x: Tensor, size: int, lefts: Tensor, rights: Tensor) -> Tensor:
        """Return x + sum of left_i (right_i x)."""
        if size == 0:
            return x
        along = torch.bmm(x.unsqueeze(1), rights[:, :size].mT)
        return torch.baddbmm(x.unsqueeze(1), along, lefts[:, :size]).squeeze(1)

    for k in range(num_evals):
        fz = f(z)
        g = fz - z
        residuals.append(relative_residual(g, fz))
        if k > 0:
            change = inverse(g - g_last, k - 1, left, right)
            row = inverse(step, k - 1, right, left)
            scale = torch.linalg.vecdot(step, change)
            torch.div(-(step + change), scale.unsqueeze(1), out=left[:, k - 1])
            right[:, k - 1] = row
        step = inverse(g, k, left, right)
        z, g_last = z + step, g
    return z, residuals


def gmres(operator: Matrix, b: Tensor, num_evals: int) -> Tensor:
    batch_size, dim = b.shape
    basis = b.new_empty(batch_size, num_evals + 1, dim)
    hessenberg = b.new_zeros(batch_size, num_evals + 1, num_evals)
    scale = torch.linalg.vector_norm(b, dim=1)
    torch.div(b, scale.unsqueeze(1), out=basis[:, 0])
    for k in range(num_evals):
        image, known = operator(basis[:, k]), basis[:, : k + 1]
        along = torch.bmm(image.unsqueeze(1), known.mT)
        rest = torch.baddbmm(image.unsqueeze(1), along, known, alpha=-1).squeeze(1)
        norm = torch.linalg.vector_norm(rest, dim=1)
        hessenberg[:, : k + 1, k] = along.squeeze(1)
        hessenberg[:, k + 1, k] = norm
        torch.div(rest, norm.unsqueeze(1), out=basis[:, k + 1])
    right = torch.zeros_like(hessenberg[:, :, :1])
    right[:, 0, 0] = scale
    weights = torch.linalg.lstsq(torch.eye(num_evals + 1, num_evals) - hessenberg, right).solution
    return torch.bmm(weights.mT, basis[:, :num_evals]).squeeze(1)


def train_step(f: Matrix, z: Tensor, num_evals: int, g: Tensor) -> None:
    """Solve with Anderson, and send a gradient at the solution to the parameters of f."""
    with torch.no_grad():
        z, _ = anderson(f, z, num_evals)
    z.requires_grad_()
    fz = f(z)

    def product(u: Tensor) -> Tensor:
        return torch.autograd.grad(fz, z, u, retain_graph=True)[0]

    fz.backward(gmres(product, g, num_evals))
