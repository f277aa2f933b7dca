"""Repair a trained loop: right at its training depth only before, right at every depth after a few more steps.

The block adds to its state, so that no penalty alone makes it settle: it is put into `Normalized` and tuned with one.
The weights that are there are kept.

Run: python examples/08_repair_a_loop.py   (10 seconds on one core)
"""

import torch
from torch import nn

from steadeq import Equilibrium, JacobianRegularizer, diagnose
from steadeq.nn import Normalized

WIDTH, DEPTH, NUM_BITS = 32, 8, 8


class Block(nn.Module):
    """Adds to its state what two convolutions make of state and input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(2 * WIDTH, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, z, x):
        return z + self.down(torch.relu(self.up(torch.cat([z, x], dim=1))))


def draw_strings(count):
    """Random strings of bits, and the parities of their prefixes."""
    bits = torch.randint(0, 2, (count, 1, NUM_BITS))
    return bits.float(), bits[:, 0].cumsum(dim=1) % 2


def tune(encoder, block, head, *, num_steps, regularizer=None):
    """Train at the training depth, with answers half way and at the end."""
    parameters = [p for module in (encoder, block, head) for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for step in range(num_steps):
        bits, parities = draw_strings(64)
        x = encoder(bits)
        z, loss = torch.zeros_like(x), torch.zeros(())
        for _ in range(2):
            z = z.detach()
            for _ in range(DEPTH // 2):
                z = block(z, x)
            loss = loss + nn.functional.cross_entropy(head(z), parities) / 2
        if regularizer is not None:
            loss = loss + regularizer(Equilibrium.at(block, z, x), step=step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def examine(encoder, block, head):
    """Ask what iterating does."""
    bits, parities = draw_strings(64)
    x = encoder(bits).detach()
    return diagnose(
        block,
        torch.zeros_like(x),
        x,
        max_evals=16 * DEPTH,
        training_depth=DEPTH,
        metric=lambda z: (head(z).argmax(dim=1) == parities).all(dim=1),
    )


torch.manual_seed(0)
encoder, block, head = nn.Conv1d(1, WIDTH, 3, padding=1), Block(), nn.Conv1d(WIDTH, 2, 1)
tune(encoder, block, head, num_steps=300)
before = examine(encoder, block, head)
print(f"Before:\n{before}\n")

block = Normalized(block, nn.GroupNorm(1, WIDTH))
tune(encoder, block, head, num_steps=150, regularizer=JacobianRegularizer(weight=0.3, estimator="difference"))
after = examine(encoder, block, head)
print(f"After:\n{after}")

assert "Normalized" in before.advice, "the diagnosis should say what the block needs"
assert before.scores[DEPTH] > 0.95, "the task should be learned"
assert before.scores[16 * DEPTH] < 0.5, "and lost beyond the training depth"
assert min(after.scores.values()) > 0.95, "the repaired block should be right at every depth"
