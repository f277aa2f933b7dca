# %% [markdown]
# # The spectrum of a trained model
#
# **What you learn:** what the penalty does to the eigenvalues of the Jacobian, and how close estimates of the largest
# one are.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import (
    DEQ,
    Anderson,
    ConvergenceWarning,
    JacobianRegularizer,
    frobenius_norm,
    operator_norm,
    spectral_radius,
)

warnings.simplefilter("ignore", ConvergenceWarning)
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


def train(weight):
    torch.manual_seed(0)
    points, labels = spirals(1024)
    model = nn.Sequential(nn.Linear(2, 24), DEQ(Cell(), solver=Anderson(max_evals=15, tol=1e-4)), nn.Linear(24, 2))
    regularizer = JacobianRegularizer(weight=weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(200):
        rows = torch.randint(0, len(points), (128,))
        eq = model[1].solve(model[0](points[rows]))
        loss = nn.functional.cross_entropy(model[2](eq.z), labels[rows]) + regularizer(eq, step=step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model[1].solve(model[0](points[:8]), solver=Anderson(max_evals=100, tol=1e-6))


def jacobians(f, z, x):
    """Return the Jacobian of f for each sample."""
    pairs = zip(z.split(1), x.split(1), strict=True)
    return torch.stack([torch.autograd.functional.jacobian(lambda z, x=x: f(z, x), z)[0, :, 0] for z, x in pairs])


# %% [markdown]
# The state is small enough to compute all eigenvalues exactly and compare.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharex=True, sharey=True)
for axis, weight in zip(axes, (0.0, 1.0), strict=True):
    eq = train(weight)
    z, x = eq.z.detach(), eq.inputs[0].detach()
    exact = torch.linalg.eigvals(jacobians(eq.f, z, x))
    rho = spectral_radius(eq)
    worst = int(rho.value.argmax())
    print(f"weight {weight}: largest radius {rho.value[worst]:.4f} (exact {exact[worst].abs().max():.4f}),")
    print(f"  there sigma {operator_norm(eq).value[worst]:.2f}, Frobenius norm {frobenius_norm(eq).value[worst]:.2f}")
    axis.scatter(exact.real, exact.imag, s=8)
    axis.add_patch(plt.Circle((0, 0), 1, fill=False, linestyle=":"))
    axis.set(title=f"eigenvalues, weight {weight}", aspect="equal")
plt.show()
