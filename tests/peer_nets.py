"""Cells with random weights of a given spectral radius, from a contraction to far beyond it, and who solves them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from peer_problems import StopError
from torch import Tensor

Map = Callable[[Tensor], Tensor]
Run = Callable[[Map, Tensor], object]

BUDGETS = (30, 60, 100)
BATCH_SIZE = 32
NUM_SEEDS = 3

NETS = (
    ("tanh", 0.9, 1e-6),
    ("tanh", 1.2, 1e-6),
    ("tanh", 2.0, 1e-3),
    ("tanh", 3.0, 1e-3),
    ("tanh", 5.0, 1e-3),
    ("relu", 0.9, 1e-6),
    ("relu", 1.2, 1e-6),
    ("relu", 2.0, 1e-3),
    ("MLP+LN", 2.0, 1e-3),
    ("MLP+LN", 5.0, 1e-3),
    ("residual", 2.0, 1e-3),
    ("residual", 5.0, 1e-3),
    ("Transformer", 1.0, 1e-3),
    ("Transformer", 2.0, 1e-3),
    ("Transformer", 5.0, 1e-3),
)
"""Kind, radius, and tolerance."""


def make_net(kind: str, radius: float, seed: int) -> tuple[Map, Tensor]:
    """Return a float32 map over a batch of random inputs, and a start."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def weight(dim: int, radius: float) -> Tensor:
        matrix = random(dim, dim)
        return matrix * (radius / torch.linalg.eigvals(matrix).abs().max())

    if kind == "Transformer":
        return _transformer(random, weight, radius)
    # A ReLU between two weights takes about half.
    inner, outer = weight(64, radius if kind in ("tanh", "relu") else 2 * radius), weight(64, 1.0)
    x = random(BATCH_SIZE, 64)

    def f(z: Tensor) -> Tensor:
        if kind == "tanh":
            return torch.tanh(z @ inner.T + x)
        if kind == "relu":
            return torch.relu(z @ inner.T + x)
        image = torch.relu(z @ inner.T) @ outer.T + x
        return F.layer_norm(image if kind == "MLP+LN" else image + z, (64,))

    return f, torch.zeros_like(x)


def _transformer(
    random: Callable[..., Tensor], weight: Callable[[int, float], Tensor], radius: float
) -> tuple[Map, Tensor]:
    """Return a post-norm layer with four heads over eight tokens, whose branches are as strong as the radius says."""
    dim, length, num_heads = 32, 8, 4
    query, key, value, merge = (weight(dim, scale) for scale in (1.0, 1.0, 1.0, 2 * radius))
    up, down = random(dim, 4 * dim) / math.sqrt(dim), radius * random(4 * dim, dim) / math.sqrt(4 * dim)
    x = random(BATCH_SIZE, length, dim)

    def split(z: Tensor) -> Tensor:
        return z.unflatten(2, (num_heads, -1)).transpose(1, 2)

    def f(z: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(split(z @ query), split(z @ key), split(z @ value))
        z = F.layer_norm(x + mixed.transpose(1, 2).flatten(2) @ merge, (dim,))
        return F.layer_norm(z + torch.relu(z @ up) @ down, (dim,))

    return f, torch.zeros_like(x)


def num_solved(run: Run, kind: str, radius: float, tol: float) -> list[int]:
    """Return how many of all samples have been evaluated at a point within the tolerance, for each of the budgets."""
    first = torch.cat([_first_solved(run, *make_net(kind, radius, seed), tol) for seed in range(NUM_SEEDS)])
    return [int((first <= budget).sum()) for budget in BUDGETS]


def _first_solved(run: Run, f: Map, z0: Tensor, tol: float) -> Tensor:
    """Return for each sample the number of the first evaluation within the tolerance, or infinity."""
    first = torch.full((z0.shape[0],), math.inf)
    num_evals = 0

    def watched(z: Tensor) -> Tensor:
        nonlocal num_evals
        num_evals += 1
        if num_evals > max(BUDGETS):
            raise StopError
        z = z.view(z0.shape)
        fz = f(z)
        size = torch.linalg.vector_norm(fz.flatten(1).double(), dim=1)
        residual = torch.linalg.vector_norm((fz - z).flatten(1).double(), dim=1)
        first[(residual <= tol * size) & size.isfinite() & first.isinf()] = num_evals
        return fz

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            run(watched, z0)
    except StopError:
        pass
    return first
