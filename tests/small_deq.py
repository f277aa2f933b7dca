"""A small model with an equilibrium layer, and data for it."""

import torch
from torch import nn

from steadeq import DEQ, Anderson, ClosedLoop, JacobianRegularizer


class Cell(nn.Linear):
    def forward(self, z, x):
        return torch.tanh(super().forward(z) + x)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), DEQ(Cell(8, 8), solver=Anderson(tol=1e-4)), nn.Linear(8, 1))


def closed_loop():
    """Return a regularizer whose weight moves with what it observes."""
    return JacobianRegularizer(weight=0.1, schedule=ClosedLoop(target=1e-6))


def samples(n=16):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)
