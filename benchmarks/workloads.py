"""The cells that are measured, each with its input and a start.

Gains are chosen so that the cells contract, but slowly enough that 20 evaluations leave every sample well above the
rounding floor: a solver at the floor does other work than one on its way there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLPCell(nn.Module):
    """Two linear layers around a ReLU, the input, and a layer norm."""

    def __init__(self, dim: int, gain: float) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.LayerNorm(dim)
        scale_operator_norm(self.inner, gain)
        scale_operator_norm(self.outer, gain)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.norm(self.outer(torch.relu(self.inner(z))) + x)


class TanhCell(nn.Module):
    """Two linear layers around a ReLU, the input, and a tanh."""

    def __init__(self, dim: int, gain: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        scale_operator_norm(self.inner, gain)
        scale_operator_norm(self.outer, gain)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.outer(torch.relu(self.inner(z))) + x)


class ConvCell(nn.Module):
    """Two 3x3 convolutions with group norms and ReLUs, and the input in between."""

    def __init__(self, num_channels: int, gain: float, num_groups: int = 8) -> None:
        super().__init__()
        self.inner = nn.Conv2d(num_channels, num_channels, 3, padding=1, bias=False)
        self.outer = nn.Conv2d(num_channels, num_channels, 3, padding=1, bias=False)
        self.inner_norm, self.outer_norm = (nn.GroupNorm(num_groups, num_channels) for _ in range(2))
        with torch.no_grad():
            self.outer.weight.mul_(gain)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        inner = torch.relu(self.inner_norm(self.inner(z)))
        return torch.relu(self.outer_norm(self.outer(inner) + x))


class RelaxedConvCell(nn.Module):
    """A convolutional cell whose contraction is an input: s g(z, x) + (1 - s) x with a rate s for each sample."""

    def __init__(self, num_channels: int, gain: float) -> None:
        super().__init__()
        self.cell = ConvCell(num_channels, gain)

    def forward(self, z: Tensor, x: Tensor, rate: Tensor) -> Tensor:
        return torch.lerp(x, self.cell(z, x), rate)


class TransformerCell(nn.Module):
    """A post-norm Transformer layer with the input added before attention."""

    def __init__(self, dim: int, gain: float, num_heads: int = 8, widening: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.merge = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, widening * dim), nn.Linear(widening * dim, dim)
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        with torch.no_grad():
            for linear in (self.merge, self.down):
                linear.weight.mul_(gain)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        batch_size, length, dim = z.shape
        q, k, v = self.qkv(z).view(batch_size, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * (dim // self.num_heads) ** -0.5
        mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch_size, length, dim)
        z = self.attention_norm(x + self.merge(mixed))
        return self.feedforward_norm(z + self.down(F.relu(self.up(z))))


def scale_operator_norm(linear: nn.Linear, norm: float) -> None:
    """Rescale a weight to the given largest singular value."""
    with torch.no_grad():
        linear.weight.mul_(norm / torch.linalg.matrix_norm(linear.weight, 2))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A cell, where to start, and what is handed to it after the state."""

    name: str
    cell: nn.Module
    z0: Tensor
    inputs: tuple[Tensor, ...]

    def f(self, z: Tensor) -> Tensor:
        """Evaluate the cell."""
        return self.cell(z, *self.inputs)

    @property
    def state_bytes(self) -> int:
        """Size of one state."""
        return self.z0.numel() * self.z0.element_size()


def mlp() -> Workload:
    """(a) The MLP: the peer's overhead on it is the one that the targets were derived from."""
    torch.manual_seed(0)
    return Workload(name="mlp", cell=MLPCell(128, 1.9), z0=torch.zeros(64, 128), inputs=(torch.randn(64, 128),))


def mlp_tanh() -> Workload:
    """(a) with a tanh in place of the layer norm: a slower f, hence smaller ratios for every solver."""
    torch.manual_seed(0)
    return Workload(name="mlp-tanh", cell=TanhCell(128, 2.2), z0=torch.zeros(64, 128), inputs=(torch.randn(64, 128),))


def mlp_rough() -> Workload:
    """(a) with larger weights: at most evaluations some sample of the batch does not improve on its best."""
    torch.manual_seed(0)
    return Workload(name="mlp-rough", cell=MLPCell(128, 2.5), z0=torch.zeros(64, 128), inputs=(torch.randn(64, 128),))


def conv() -> Workload:
    """(b) The convolutional cell."""
    torch.manual_seed(0)
    shape = (16, 32, 32, 32)
    return Workload(name="conv", cell=ConvCell(32, 1.6), z0=torch.zeros(shape), inputs=(torch.randn(shape),))


def transformer() -> Workload:
    """(c) The Transformer layer."""
    torch.manual_seed(0)
    shape = (8, 128, 256)
    return Workload(
        name="transformer", cell=TransformerCell(256, 2.0), z0=torch.zeros(shape), inputs=(torch.randn(shape),)
    )


def mixed() -> Workload:
    """The convolutional cell on a batch of which half is easy (about 5 evaluations) and half is hard (about 25)."""
    torch.manual_seed(0)
    shape = (64, 32, 32, 32)
    rates = torch.tensor([0.2, 0.94]).repeat(32)[:, None, None, None]
    return Workload(
        name="mixed", cell=RelaxedConvCell(32, 2.5), z0=torch.zeros(shape), inputs=(torch.randn(shape), rates)
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp": mlp,
    "conv": conv,
    "transformer": transformer,
    "mlp-tanh": mlp_tanh,
    "mlp-rough": mlp_rough,
}
"""What solvers and training steps are measured on; the first three have targets."""
