"""Stabilize a looped model in three lines: right at its training depth only before, at every depth after.

The model is plain PyTorch, in the manner of recursive reasoning models: a block that sees its input at every step is
iterated by hand, every few steps the answer is supervised, and the state is carried on without its graph. The task is
one where depth pays: the parity of all bits so far, at every position of a string. No solver of steadeq is called.

Run: python examples/06_stabilize_a_loop.py   (about a minute on one core)
"""

import argparse

import torch
from torch import nn

from steadeq import Equilibrium, JacobianRegularizer, diagnose

WIDTH = 32
LOOPS = 4
"""Evaluations of the block between two supervised answers."""


class Block(nn.Module):
    """Takes in state and input by an adapter, then a residual block of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Conv1d(2 * WIDTH, WIDTH, 1)
        self.up, self.down = (nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))

    def forward(self, z, x):
        h = self.adapter(torch.cat([z, x], dim=1))
        return h + self.down(torch.relu(self.up(h)))


class Model(nn.Module):
    """An encoder of bits, the block, and a head that reads the state."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.encoder, self.block, self.head = nn.Conv1d(1, WIDTH, 3, padding=1), block, nn.Conv1d(WIDTH, 2, 1)


def draw_strings(count, num_bits):
    """Random strings of bits, and the parities of their prefixes."""
    bits = torch.randint(0, 2, (count, 1, num_bits))
    return bits.float(), bits[:, 0].cumsum(dim=1) % 2


def train(regularizer, *, seed, num_steps, num_bits, num_segments, block=Block):
    """Train by deep supervision; num_segments gives the number of supervised answers of each step."""
    torch.manual_seed(seed)
    model = Model(block())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(num_steps):
        bits, parities = draw_strings(64, num_bits)
        x = model.encoder(bits)
        z, loss = torch.zeros_like(x), torch.zeros(())
        for _ in range(num_segments(step)):
            z = z.detach()
            for _ in range(LOOPS):
                z = model.block(z, x)
            loss = loss + nn.functional.cross_entropy(model.head(z), parities) / num_segments(step)
        loss = loss + regularizer(Equilibrium.at(model.block, z, x), step=step)  # the one line in the loop
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model, *, num_bits, depths, count=128):
    """Fraction of strings with every parity right, after each number of evaluations."""
    bits, parities = draw_strings(count, num_bits)
    x = model.encoder(bits)
    z, scores = torch.zeros_like(x), {}
    for depth in range(1, max(depths) + 1):
        z = model.block(z, x)
        if depth in depths:
            scores[depth] = (model.head(z).argmax(dim=1) == parities).all(dim=1).float().mean().item()
    return scores


def examine(model, *, num_bits, training_depth):
    """Ask whether it is safe to iterate the trained block."""
    bits, parities = draw_strings(32, num_bits)
    x = model.encoder(bits).detach()
    return diagnose(
        model.block,
        torch.zeros_like(x),
        x,
        max_evals=64 * training_depth,
        training_depth=training_depth,
        metric=lambda z: (model.head(z).argmax(dim=1) == parities).all(dim=1),
    )


def main():
    parser = argparse.ArgumentParser(description="Train a looped model with and without the penalty.")
    parser.add_argument("--num-steps", type=int, default=600, help="training steps")
    parser.add_argument("--num-bits", type=int, default=16, help="length of the strings")
    parser.add_argument("--depth", type=int, default=12, help=f"training depth, a multiple of {LOOPS}")
    options = parser.parse_args()
    depths = [options.depth * factor for factor in (1, 2, 4, 16)]
    for weight in (0.0, 0.3):
        model = train(
            JacobianRegularizer(weight=weight, estimator="difference"),
            seed=0,
            num_steps=options.num_steps,
            num_bits=options.num_bits,
            num_segments=lambda step: options.depth // LOOPS,
        )
        scores = accuracy(model, num_bits=options.num_bits, depths=depths)
        print("With the penalty:" if weight else "Without:")
        print("  ".join(f"{score:.0%} after {depth}" for depth, score in scores.items()))
        print(examine(model, num_bits=options.num_bits, training_depth=options.depth), end="\n\n")
        assert scores[depths[0]] > 0.95, "the task should be learned with and without the penalty"
        assert (scores[depths[-1]] > 0.95) == (weight > 0), "it should stay right with the penalty, and only then"


if __name__ == "__main__":
    main()
