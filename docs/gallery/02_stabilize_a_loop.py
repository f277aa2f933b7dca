# %% [markdown]
# # Stabilize a loop
#
# **What you learn:** one line keeps a looped network right when it runs longer than it was trained.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import Equilibrium, JacobianRegularizer

torch.set_num_threads(1)
DEPTH = 8


class Block(nn.Module):
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


# %% [markdown]
# The loop is written by hand and trained by ordinary backpropagation. The penalty is added where the loop ends.


# %%
def train(weight, seed):
    torch.manual_seed(seed)
    points, labels = spirals(1024)
    encoder, block, head = nn.Linear(2, 24), Block(), nn.Linear(24, 2)
    regularizer = JacobianRegularizer(weight=weight)
    parameters = [*encoder.parameters(), *block.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for step in range(800):
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
    return encoder, block, head


@torch.no_grad()
def accuracies(encoder, block, head, longest=128):
    points, labels = spirals(512)
    x = encoder(points)
    z, scores = torch.zeros_like(x), []
    for _ in range(longest):
        z = block(z, x)
        scores.append(float((head(z).argmax(1) == labels).float().mean()))
    return scores


# %%
figure, axes = plt.subplots(figsize=(6, 4))
for weight, color in ((0.0, "tab:red"), (0.1, "tab:blue")):
    for seed in range(2):
        scores = accuracies(*train(weight, seed))
        axes.plot(range(1, 129), scores, color=color, label=f"weight {weight}" if seed == 0 else None)
        trained, worst = scores[DEPTH - 1], min(scores[DEPTH:])
        print(f"weight {weight}, seed {seed}: {trained:.1%} at the training depth, at worst {worst:.1%} beyond it")
axes.axvline(DEPTH, color="gray", linestyle=":")
axes.set(xscale="log", xlabel="evaluations of the block", ylabel="accuracy")
axes.legend()
plt.show()
