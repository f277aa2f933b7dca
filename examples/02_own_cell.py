"""Your own cell in a training loop.

A cell is any module that maps (z, *inputs) to a new z; `DEQ` solves it to its equilibrium, and stands between other
layers like any module. Here it learns to tell two interleaved spirals apart.

Run: python examples/02_own_cell.py
"""

import torch
from torch import nn

from steadeq import DEQ, GMRES, Anderson, Implicit


class Cell(nn.Module):
    """Two layers, with the input added at every evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, z, x):
        return torch.tanh(self.down(torch.relu(self.up(z))) + x)


def spirals(count):
    radius = 3 * torch.rand(count).sqrt()
    label = torch.randint(0, 2, (count,))
    angle = 1.0 * radius + torch.pi * label
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


torch.manual_seed(0)
x, y = spirals(2048)
test_x, test_y = spirals(512)

layer = DEQ(
    Cell(),
    solver=Anderson(max_evals=12, tol=1e-3),
    adjoint=Implicit(GMRES(max_evals=12, tol=1e-3)),
)
# The state starts at zeros like the input of the layer.
model = nn.Sequential(nn.Linear(2, 32), layer, nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# For longer, the cell outgrows its budget: solves stop short of the tolerance, and accuracy begins to jump from epoch
# to epoch. What helps against that is in 03_regularize.py.
for epoch in range(4):
    for batch in torch.randperm(len(x)).split(64):
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean()
    # layer.solve returns the equilibrium: the state, and how it was found.
    eq = layer.solve(model[0](test_x))
    eq.z.sum().backward()
    print(
        f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {accuracy:.1%}, "
        f"residual {eq.stats.residual.mean():.1e}, evaluations {eq.stats.num_evals.float().mean():.1f} forward, "
        f"{eq.backward.num_evals.float().mean():.1f} backward"
    )
assert accuracy > 0.9
