"""Is it safe to iterate a loop of your own beyond the depth it was trained with? Ask, add one line, ask again.

Nothing here calls a solver: the loop is written by hand, trained by ordinary backpropagation, and stays as it is.

Run: python examples/05_diagnose_a_loop.py
"""

import torch
from torch import nn

from steadeq import Equilibrium, JacobianRegularizer, diagnose

DEPTH = 8


class Block(nn.Module):
    """A two-layer block that sees its input at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 96), nn.Linear(96, 24)

    def forward(self, z, x):
        return torch.tanh(self.down(torch.relu(self.up(z))) + x)


def spirals(count):
    """Two interleaved spirals, one per class."""
    radius = torch.rand(count).sqrt() * 3
    label = torch.randint(0, 2, (count,))
    angle = 1.5 * radius + torch.pi * label + 0.1 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


def train_and_diagnose(weight):
    torch.manual_seed(0)
    points, labels = spirals(1024)
    encoder, block, head = nn.Linear(2, 24), Block(), nn.Linear(24, 2)
    regularizer = JacobianRegularizer(weight=weight)
    parameters = [*encoder.parameters(), *block.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for step in range(400):
        rows = torch.randint(0, len(points), (128,))
        x = encoder(points[rows])
        z = torch.zeros_like(x)
        for _ in range(DEPTH):
            z = block(z, x)
        loss = nn.functional.cross_entropy(head(z), labels[rows])
        loss = loss + regularizer(Equilibrium.at(block, z, x), step=step)  # the one line
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    points, labels = spirals(128)
    x = encoder(points).detach()
    return diagnose(
        block,
        torch.zeros_like(x),
        x,
        max_evals=64 * DEPTH,
        training_depth=DEPTH,
        metric=lambda z: head(z).argmax(dim=1) == labels,
    )


before, after = train_and_diagnose(weight=0.0), train_and_diagnose(weight=1.0)
print(f"Without the penalty:\n{before}\n\nWith the penalty:\n{after}")
assert not before.settles, "without the penalty, some samples should not settle"
assert after.settles, "with the penalty, every sample should converge"
# before.plot().savefig("loop.png") shows residual and accuracy against the number of evaluations.
