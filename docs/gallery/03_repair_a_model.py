# %% [markdown]
# # Repair a trained model
#
# **What you learn:** a looped model that is right at its training depth only becomes right at every depth, after a
# quarter as many training steps with the penalty.

# %%
import copy

import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import Equilibrium, JacobianRegularizer, diagnose

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, NUM_BITS, DEPTH = 32, 8, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Conv1d(2 * WIDTH, WIDTH, 1)
        self.up, self.down = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, z, x):
        h = self.adapter(torch.cat([z, x], dim=1))
        return h + self.down(torch.relu(self.up(h)))


def draw_strings(count):  # bits, and the parities of all prefixes
    bits = torch.randint(0, 2, (count, 1, NUM_BITS))
    return bits.float(), bits[:, 0].cumsum(dim=1) % 2


def train(model, num_steps, regularizer=None):
    encoder, block, head = model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(num_steps):
        bits, parities = draw_strings(64)
        x = encoder(bits)
        z, loss = torch.zeros_like(x), 0.0
        for _ in range(2):  # answers half way and at the end
            z = z.detach()
            for _ in range(DEPTH // 2):
                z = block(z, x)
            loss = loss + nn.functional.cross_entropy(head(z), parities) / 2
        if regularizer is not None:
            loss = loss + regularizer(Equilibrium.at(block, z, x), step=step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


# %% [markdown]
# Train without the penalty, then continue from the same weights, without it and with it.

# %%
trained = nn.ModuleList([nn.Conv1d(1, WIDTH, 3, padding=1), Block(), nn.Conv1d(WIDTH, 2, 1)])
train(trained, 300)
more, repaired = copy.deepcopy(trained), copy.deepcopy(trained)
train(more, 75)
train(repaired, 75, JacobianRegularizer(weight=0.3, estimator="difference"))

# %%
test_bits, test_parities = draw_strings(256)


def right(model, z):
    return (model[2](z).argmax(dim=1) == test_parities).all(dim=1).float()


@torch.no_grad()
def curve(model, num_evals):
    x = model[0](test_bits)
    z, shares = torch.zeros_like(x), []
    for _ in range(num_evals):
        z = model[1](z, x)
        shares.append(float(right(model, z).mean()))
    return shares


figure, axes = plt.subplots(figsize=(6, 4))
for name, model in (("as trained", trained), ("trained longer", more), ("repaired", repaired)):
    shares = curve(model, 16 * DEPTH)
    axes.semilogx(range(1, len(shares) + 1), shares, label=name)
    print(f"{name}: {shares[DEPTH - 1]:.0%} of strings right at the training depth, {shares[-1]:.0%} at 16 times it")
axes.axvline(DEPTH, color="gray", linestyle=":")
axes.set(xlabel="evaluations of the block (dotted: in training)", ylabel="strings that are right")
axes.legend()
plt.show()

# %% [markdown]
# The diagnosis agrees, and says what to do:

# %%
for name, model in (("as trained", trained), ("repaired", repaired)):
    x = model[0](test_bits[:32]).detach()
    found = diagnose(model[1], torch.zeros_like(x), x, training_depth=DEPTH, max_evals=16 * DEPTH)
    print(f"{name}\n{found}\n")
