"""Cells whose Jacobians are penalized, in double precision and small enough for dense Jacobians."""

import math

import torch
from torch import nn

from steadeq.models.mdeq.cell import MDEQCell
from steadeq.models.transformer.cell import TransformerCell


def linear(z, M):
    return torch.einsum("bij,bj->bi", M, z)


def matrices(batch=4, dim=12, dtype=torch.float64):
    return torch.randn(batch, dim, dim, dtype=dtype) / math.sqrt(dim)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def one_layer():
    layer = nn.Linear(6, 6).double()
    return layer, torch.randn(3, 6, dtype=torch.float64), ()


def two_layers():
    net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 6)).double()
    z, x = torch.randn(2, 3, 6, dtype=torch.float64)
    return (lambda z, x: net(z + x)), z, (x,)


def transformer():
    cell = TransformerCell(features=8, num_heads=2, hidden_features=16).double()
    memory, positions = cell.prepare(4)
    z, x = torch.randn(2, 4, 8, dtype=torch.float64), torch.randn(2, 4, 24, dtype=torch.float64)
    return (lambda z, x: cell(z, x, memory, positions)), z, (x,)


def multiscale():
    cell = MDEQCell(channels=(2, 4), expansion=2, groups=2).double()
    z = torch.randn(2, 2, 4, 4, dtype=torch.float64), torch.randn(2, 4, 2, 2, dtype=torch.float64)
    return cell, z, (torch.randn(2, 2, 4, 4, dtype=torch.float64),)


def dense_jacobians(f, z, inputs):
    """Return the (B, D, D) Jacobians, by one vector-Jacobian product for each row."""
    leaves = [leaf.detach().requires_grad_() for leaf in (z if isinstance(z, tuple) else (z,))]
    images = f(tuple(leaves) if isinstance(z, tuple) else leaves[0], *inputs)
    image = torch.cat([part.flatten(1) for part in (images if isinstance(z, tuple) else (images,))], dim=1)
    rows = [torch.autograd.grad(image[:, i].sum(), leaves, retain_graph=True) for i in range(image.shape[1])]
    return torch.stack([torch.cat([part.flatten(1) for part in row], dim=1) for row in rows], dim=1)
