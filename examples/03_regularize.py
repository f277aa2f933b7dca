"""Regularize the Jacobian: the same model, trained with and without the penalty, at a budget of 6 evaluations.

Run: python examples/03_regularize.py
"""

import torch
from torch import nn

from steadeq import DEQ, GMRES, Anderson, Equilibrium, Implicit, JacobianRegularizer, frobenius_norm, spectral_radius


class Cell(nn.Module):
    """A two-layer cell."""

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


def train(weight):
    torch.manual_seed(0)
    x, y = spirals(1024)
    layer = DEQ(Cell(), solver=Anderson(max_evals=6, tol=1e-3), adjoint=Implicit(GMRES(max_evals=6, tol=1e-3)))
    encoder, head = nn.Linear(2, 24), nn.Linear(24, 2)
    regularizer = JacobianRegularizer(weight=weight, probability=0.7)
    parameters = [*encoder.parameters(), *layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    for step in range(400):
        rows = torch.randint(0, len(x), (128,))
        eq = layer.solve(encoder(x[rows]))
        loss = nn.functional.cross_entropy(head(eq.z), y[rows])
        loss = loss + regularizer(eq, step=step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    x, y = spirals(1024)
    with torch.no_grad():
        eq = layer.solve(encoder(x))
        accuracy = (head(eq.z).argmax(1) == y).float().mean().item()
    norm = frobenius_norm(eq).value.square().mean().item() / 24
    # Of some of the samples: what was computed elsewhere becomes an equilibrium by Equilibrium.at.
    rho = spectral_radius(Equilibrium.at(layer.cell, eq.z[:64], *(tensor[:64] for tensor in eq.inputs)))
    return accuracy, eq.stats.residual.mean().item(), norm, rho.value.mean().item(), rho.error.mean().item()


print("gamma   accuracy   residual at 6 evaluations   ‖J‖²_F / d   spectral radius")
results = {}
for gamma in (0.0, 2.0):
    results[gamma] = accuracy, residual, norm, rho, error = train(gamma)
    print(f"{gamma:5.1f} {accuracy:10.1%} {residual:27.1e} {norm:12.3f} {rho:9.3f} ± {error:.3f}")
assert results[2.0][2] < 0.7 * results[0.0][2], "the penalty should lower the Jacobian norm"
