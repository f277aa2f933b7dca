# %% [markdown]
# # Repair a trained model
#
# **What you learn:** a model that was trained without the penalty becomes stable in a few steps of training with it.

# %%
import copy
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import DEQ, Anderson, ConvergenceWarning, JacobianRegularizer, Picard, spectral_radius

warnings.simplefilter("ignore", ConvergenceWarning)  # that some solves fall short is the point here
torch.manual_seed(0)
torch.set_num_threads(1)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 96), nn.Linear(96, 24)

    def forward(self, z, x):
        return torch.tanh(self.down(torch.relu(self.up(z))) + x)


def spirals(count):
    radius = torch.rand(count).sqrt() * 3
    label = torch.randint(0, 2, (count,))
    angle = 1.5 * radius + torch.pi * label + 0.1 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


points, labels = spirals(1024)
test_points, test_labels = spirals(256)


def train(model, num_steps, regularizer=None, lr=1e-2):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(num_steps):
        rows = torch.randint(0, len(points), (128,))
        eq = model[1].solve(model[0](points[rows]))
        loss = nn.functional.cross_entropy(model[2](eq.z), labels[rows])
        if regularizer is not None:
            loss = loss + regularizer(eq, step=step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def residuals_and_accuracy(model, solver):
    eq = model[1].solve(model[0](test_points), solver=solver)
    return eq.stats.trace.mean(1), float((model[2](eq.z).argmax(1) == test_labels).float().mean())


# %%
model = nn.Sequential(nn.Linear(2, 24), DEQ(Cell(), solver=Anderson(max_evals=12, tol=1e-3)), nn.Linear(24, 2))
train(model, 300)
repaired = copy.deepcopy(model)
train(repaired, 100, JacobianRegularizer(weight=1.0), lr=3e-3)

# %%
figure, axes = plt.subplots(figsize=(6, 4))
for name, candidate in (("as trained", model), ("repaired", repaired)):
    trace, accuracy = residuals_and_accuracy(candidate, Picard(max_evals=60, tol=0))
    radius = spectral_radius(candidate[1].solve(candidate[0](test_points))).value.mean()
    axes.semilogy(trace, label=name)
    print(f"{name}: accuracy {accuracy:.1%} by plain iteration, mean spectral radius {radius:.2f}")
axes.set(xlabel="plain iterations", ylabel="relative residual")
axes.legend()
plt.show()
