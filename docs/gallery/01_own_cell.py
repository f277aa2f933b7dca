# %% [markdown]
# # A cell of your own
#
# **What you learn:** any module that maps `(z, x)` to a new `z` becomes a layer of "infinite depth", in the memory of
# one.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import DEQ, GMRES, Anderson, ConvergenceWarning, Implicit

warnings.simplefilter("ignore", ConvergenceWarning)  # some points between the spirals take longer, see below
torch.manual_seed(0)
torch.set_num_threads(1)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 64), nn.Linear(64, 24)

    def forward(self, z, x):
        return torch.tanh(self.down(torch.relu(self.up(z))) + x)


def spirals(count):
    radius = 3 * torch.rand(count).sqrt()
    label = torch.randint(0, 2, (count,))
    angle = radius + torch.pi * label
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


# %% [markdown]
# The layer stands between others like any module. `layer.solve(x)` tells how the solve went, `layer(x)` returns the
# state alone.

# %%
layer = DEQ(Cell(), solver=Anderson(max_evals=40, tol=1e-3), adjoint=Implicit(GMRES(max_evals=40, tol=1e-4)))
model = nn.Sequential(nn.Linear(2, 24), layer, nn.Linear(24, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
points, labels = spirals(1024)
for _ in range(150):
    rows = torch.randint(0, len(points), (128,))
    loss = nn.functional.cross_entropy(model(points[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

test_points, test_labels = spirals(512)
with torch.no_grad():
    accuracy = (model(test_points).argmax(1) == test_labels).float().mean()
    print(f"test accuracy {accuracy:.1%};", layer.solve(model[0](test_points)).stats)

# %%
axis = torch.linspace(-3.2, 3.2, 100)
grid = torch.cartesian_prod(axis, axis)
with torch.no_grad():
    probability = model(grid).softmax(1)[:, 1].reshape(100, 100).T
    evals = layer.solve(model[0](grid)).stats.num_evals.reshape(100, 100).T
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
left.contourf(axis, axis, probability, levels=20, cmap="RdBu")
left.scatter(*test_points.T, c=test_labels, s=6, cmap="gray")
left.set_title("what it has learned")
image = right.pcolormesh(axis, axis, evals, cmap="viridis")
right.set_title("evaluations that each point needs")
figure.colorbar(image)
plt.show()
