# %% [markdown]
# # Let a closed loop choose the strength
#
# **What you learn:** instead of tuning the weight of the penalty, name the residual that you want; the weight follows,
# and swings around its level while the network learns.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import DEQ, Anderson, ClosedLoop, Constant, ConvergenceWarning, JacobianRegularizer

warnings.simplefilter("ignore", ConvergenceWarning)  # solves of 8 evaluations fall short at first
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


# %%
def train(target):
    torch.manual_seed(0)
    points, labels = spirals(1024)
    model = nn.Sequential(nn.Linear(2, 24), DEQ(Cell(), solver=Anderson(max_evals=8, tol=1e-6)), nn.Linear(24, 2))
    schedule = Constant() if target is None else ClosedLoop(target=target, gain=1.0)
    regularizer = JacobianRegularizer(weight=0.0 if target is None else 0.1, schedule=schedule)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    history = []
    for step in range(300):
        rows = torch.randint(0, len(points), (128,))
        eq = model[1].solve(model[0](points[rows]))
        task = nn.functional.cross_entropy(model[2](eq.z), labels[rows])
        loss = task + regularizer(eq, step=step, task_loss=task)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        residual = eq.stats.residual.mean()
        regularizer.observe(residual=residual)  # closes the loop
        history.append((float(residual), regularizer.gamma(step), float(task.detach())))
    return torch.tensor(history).T


# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5))
for target in (None, 1e-3):
    name, history = "no penalty" if target is None else f"target {target:g}", train(target)
    for axis, values in zip(axes, history, strict=True):
        axis.semilogy(values, label=name)
    residual, _, task = history[:, -50:].mean(1)
    print(f"{name}: residual {residual:.1e} and task loss {task:.2f} at the end")
for axis, title in zip(axes, ("residual of the solve", "weight gamma", "task loss"), strict=True):
    axis.set(title=title, xlabel="step")
axes[0].legend()
plt.show()
