"""A script of a user who annotates everything: what test_types.py has type checkers read."""

import torch
from torch import Tensor, nn

from steadeq import (
    DEQ,
    GMRES,
    Anderson,
    Equilibrium,
    Implicit,
    JacobianRegularizer,
    SolveStats,
    diagnose,
    fixed_point,
    spectral_radius,
)
from steadeq.integrations import Monitor
from steadeq.integrations.torchdeq import get_deq
from steadeq.models import ToyDEQ


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(z) + x)


def train(layer: DEQ, x: Tensor) -> float:
    eq = layer.solve(x)
    stats: SolveStats = eq.stats
    loss: Tensor = eq.z.square().mean() + JacobianRegularizer(weight=0.1)(eq, step=0)
    return float(loss.detach()) + float(stats.residual.max())


def f(z: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(0.5 * z + x)


eq = fixed_point(f, torch.zeros(2, 4), torch.ones(2, 4))
norm: Tensor = eq.z.norm()
count: Tensor = eq.stats.num_evals
pair = fixed_point(lambda z: (z[1], z[0]), (torch.zeros(2, 1), torch.ones(2, 1)))
first: Tensor = pair.z[0]
given = Equilibrium.at(f, torch.zeros(2, 4), torch.ones(2, 4))
rho: Tensor = spectral_radius(given).value
plain: Equilibrium = given
state: Tensor = ToyDEQ().solve(torch.zeros(2, 1))[1].z
monitor = Monitor(JacobianRegularizer(weight=0.1))
monitor.begin(0)
output: Tensor = DEQ(Cell())(torch.ones(2, 4))
penalty: Tensor = monitor.penalty()
numbers: dict[str, float] = monitor.end()
states, info = get_deq(f_max_iter=8)(torch.cos, torch.zeros(2, 4))
last: Tensor = states[-1]
print(
    diagnose(f, torch.zeros(2, 4), torch.ones(2, 4)),
    train(DEQ(Cell(), solver=Anderson(), adjoint=Implicit(GMRES())), torch.ones(2, 4)),
)
