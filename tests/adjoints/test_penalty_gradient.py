"""The penalty's double backward and the implicit gradient do not meet."""

import pytest
import torch
from adjoints.cells import EXACT, TIGHT, energy, matrix
from torch import nn

from steadeq import DEQ, OneStep, Phantom, Unrolled, jacobian_penalty

# All of these but the last save their own output for backward, which is how a hook on it would be met.
ENDINGS = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda h: torch.softmax(h, dim=-1),
    "exp": lambda h: 0.2 * torch.exp(0.5 * h),
    "softplus": lambda h: nn.functional.softplus(h) / 2,
}
each_ending = pytest.mark.parametrize("ending", ENDINGS)


class Cell(nn.Module):
    def __init__(self, ending, dim=5):
        super().__init__()
        self.weight = nn.Parameter(matrix(dim, 0.7))
        self.bias = nn.Parameter(0.1 * torch.randn(dim, dtype=torch.float64))
        self.ending = ENDINGS[ending]

    def forward(self, z, x):
        return self.ending(z @ self.weight.T + self.bias + x)


def generator():
    return torch.Generator().manual_seed(7)


def reference_penalty(cell, z, x, num_probes):
    """Write Eq. (4) out with the dense Jacobian of each sample and the signs that the generator gives."""
    source, total = generator(), 0.0
    jacobians = torch.stack(
        [torch.func.jacrev(lambda row, y=y: cell(row[None], y[None])[0])(row) for row, y in zip(z, x, strict=True)]
    )
    for _ in range(num_probes):
        signs = torch.empty_like(z).bernoulli_(0.5, generator=source) * 2 - 1
        total = total + torch.einsum("bi,bij->bj", signs, jacobians).square().sum()
    return total / (num_probes * z.numel())


@pytest.fixture
def x():
    return torch.randn(4, 5, dtype=torch.float64)


@each_ending
@pytest.mark.parametrize(
    "adjoint", [EXACT, OneStep(), Phantom(), Unrolled()], ids=["implicit", "one", "phantom", "unrolled"]
)
def test_the_gradient_of_task_and_penalty_is_the_sum_of_both(ending, adjoint, x):
    cell = Cell(ending)
    sources = list(cell.parameters())
    eq = DEQ(cell, solver=TIGHT, adjoint=adjoint).solve(x)
    penalty = jacobian_penalty(eq, num_probes=2, generator=generator())
    task_alone = torch.autograd.grad(energy(eq.z), sources, retain_graph=True)
    penalty_alone = torch.autograd.grad(reference_penalty(cell, eq.z.detach(), x, 2), sources)
    (energy(eq.z) + 10 * penalty).backward()
    for source, task, part in zip(sources, task_alone, penalty_alone, strict=True):
        torch.testing.assert_close(source.grad, task + 10 * part)
