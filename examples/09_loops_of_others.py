"""Where the penalty goes in loops of the shapes that others train: TRM, HRM, Huginn, Parcae, Ouro and deep-thinking.

Small models that have the shape of the loop and of the training step, and no code, of these projects. Each has `loss`,
one training step up to its loss, with the line of steadeq marked. The task is the parity of all bits so far.

Run: python examples/09_loops_of_others.py   (a few seconds)
"""

import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from steadeq import Equilibrium, JacobianRegularizer

WIDTH, HEADS = 32, 4


class Layer(nn.Module):
    """Fused attention and a gated feed-forward part, with a normalization in front of each, or behind."""

    def __init__(self, *, is_post=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norms, self.is_post = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2)), is_post

    def attend(self, h):
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(h).chunk(3, dim=2))
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def feed(self, h):
        gate, up = self.up(h).chunk(2, dim=2)
        return self.down(nn.functional.silu(gate) * up)

    def forward(self, h):
        for part, norm in zip((self.attend, self.feed), self.norms, strict=True):
            h = norm(h + part(h)) if self.is_post else h + part(norm(h))
        return h


class Reader(nn.Module):
    """What all models have: an embedding of bits and their positions, and a head."""

    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(2, WIDTH), nn.Parameter(0.1 * torch.randn(64, WIDTH))
        self.head = nn.Linear(WIDTH, 2)

    def embed(self, bits):
        return self.embedding(bits) + self.positions[: bits.shape[1]]

    def task_loss(self, h, parities):
        return cross_entropy(self.head(h).mT, parities)


@dataclass
class Carry:
    """The slow and the fast state, which training carries from one supervised answer to the next."""

    high: torch.Tensor
    low: torch.Tensor


class TRM(Reader):
    """Two states and one network: 3 cycles of 6 fast updates and a slow one, the last cycle with gradients."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(Layer(is_post=True), Layer(is_post=True))

    def cycle(self, state, x):
        low = state.low
        for _ in range(6):
            low = self.net(low + state.high + x)
        return Carry(self.net(state.high + low), low)

    def once(self, state, x):
        """One update of each state: a cheaper f, as a cycle is made of these."""
        low = self.net(state.low + state.high + x)
        return Carry(self.net(state.high + low), low)

    def loss(self, bits, parities, regularizer, carry=None):
        x = self.embed(bits)
        carry = Carry(torch.zeros_like(x), torch.zeros_like(x)) if carry is None else carry
        with torch.no_grad():
            for _ in range(2):
                carry = self.cycle(carry, x)
        carry = self.cycle(carry, x)
        loss = self.task_loss(carry.high, parities)
        self.carry = Carry(carry.high.detach(), carry.low.detach())  # for the next supervised answer
        return loss + regularizer(Equilibrium.at(self.once, carry, x))  # steadeq


class HRM(Reader):
    """Two states with a module each: 2 x 2 updates, of which the last of each has gradients."""

    def __init__(self):
        super().__init__()
        self.high, self.low = (nn.Sequential(Layer(is_post=True)) for _ in range(2))

    def once(self, state, x):
        low = self.low(state.low + state.high + x)
        return Carry(self.high(state.high + low), low)

    def loss(self, bits, parities, regularizer):
        x = self.embed(bits)
        carry = Carry(torch.zeros_like(x), torch.zeros_like(x))
        with torch.no_grad():
            for update in range(3):
                carry.low = self.low(carry.low + carry.high + x)
                if update % 2:
                    carry.high = self.high(carry.high + carry.low)
        carry = self.once(carry, x)
        return self.task_loss(carry.high, parities) + regularizer(Equilibrium.at(self.once, carry, x))  # steadeq


class Recurrent(Reader):
    """A prelude, a core that starts from noise and is iterated at random depths, and a coda."""

    def __init__(self):
        super().__init__()
        self.prelude, self.core, self.coda = Layer(), Layer(), Layer()

    def loss(self, bits, parities, regularizer):
        e = self.prelude(self.embed(bits))
        z = torch.randn_like(e)
        with torch.no_grad():
            for _ in range(random.randint(0, 8)):
                z = self.step(z, e)
        for _ in range(4):
            z = self.step(z, e)
        return self.task_loss(self.coda(z), parities) + regularizer(Equilibrium.at(self.step, z, e))  # steadeq


class Huginn(Recurrent):
    """An adapter takes in state and input, and a normalization ends the step."""

    def __init__(self):
        super().__init__()
        self.adapter, self.norm = nn.Linear(2 * WIDTH, WIDTH, bias=False), nn.RMSNorm(WIDTH)

    def step(self, z, e):
        return self.norm(self.core(self.adapter(torch.cat([z, e], dim=2))))


class Parcae(Recurrent):
    """The input is injected with a radius below 1 by construction; that of the whole step need not be."""

    def __init__(self):
        super().__init__()
        self.rate, self.inject = nn.Parameter(torch.zeros(WIDTH)), nn.Linear(WIDTH, WIDTH, bias=False)

    def step(self, z, e):
        return self.core(torch.exp(-torch.exp(self.rate)) * z + self.inject(e))


class Ouro(Reader):
    """A stack that is passed four times, with a loss after each pass, weighted by the chance that the gate exits there.

    It sees its input as the start alone, so that there is none to hand in.
    """

    def __init__(self):
        super().__init__()
        self.stack, self.norm, self.gate = nn.Sequential(Layer(), Layer()), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 1)

    def step(self, z):
        return self.norm(self.stack(z))

    def loss(self, bits, parities, regularizer):
        z, stay, loss = self.embed(bits), 1.0, 0.0
        for number in range(4):
            z = self.step(z)
            leave = torch.sigmoid(self.gate(z)).mean() if number < 3 else 1.0
            loss, stay = loss + stay * leave * self.task_loss(z, parities), stay * (1 - leave)
        return loss + regularizer(Equilibrium.at(self.step, z))  # steadeq


class DeepThinking(Reader):
    """Convolutions with recall and the progressive loss: n steps without gradients, then k with."""

    def __init__(self):
        super().__init__()
        self.recall = nn.Conv1d(2 * WIDTH, WIDTH, 3, padding=1, bias=False)
        self.convolutions = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, bias=False) for _ in range(2))

    def step(self, z, x):
        h = self.recall(torch.cat([z, x], dim=1))
        first, second = self.convolutions
        return torch.relu(h + second(torch.relu(first(h))))

    def loss(self, bits, parities, regularizer):
        x = self.embed(bits).mT
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(random.randint(0, 4)):
                z = self.step(z, x)
        for _ in range(random.randint(1, 4)):
            z = self.step(z, x)
        return self.task_loss(z.mT, parities) + regularizer(Equilibrium.at(self.step, z, x))  # steadeq


MODELS = {"TRM": TRM, "HRM": HRM, "Huginn": Huginn, "Parcae": Parcae, "Ouro": Ouro, "deep-thinking": DeepThinking}


def draw_strings(count, num_bits):
    """Random strings of bits, and the parities of their prefixes."""
    bits = torch.randint(0, 2, (count, num_bits))
    return bits, bits.cumsum(dim=1) % 2


def main():
    for name, make in MODELS.items():
        torch.manual_seed(0)
        random.seed(0)
        model, regularizer = make(), JacobianRegularizer(weight=0.1, estimator="difference")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(10):
            loss = model.loss(*draw_strings(16, 8), regularizer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert all(parameter.grad is not None for parameter in model.parameters())
        print(f"{name:14} loss with the penalty {losses[0]:.3f}, after 10 steps {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
