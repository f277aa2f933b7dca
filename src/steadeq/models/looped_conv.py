"""Blocks of convolutions that are iterated over sequences and pictures, as looped and recursive models do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._internal.cached import AbstractCached
from .._internal.validation import check_choice, check_count, check_not_negative
from ..adjoints import AbstractAdjoint, Unrolled
from ..nn import DEQ, Normalized
from ..solvers import AbstractSolver, Picard
from .base import AbstractEquilibriumModel, AbstractModelConfig

Recall = Literal["concat", "add", "decay", "none"]


class SpectralNormConv(AbstractCached[Tensor]):
    """A convolution that keeps sizes, and whose weight, as a matrix, has a spectral norm of at most 1.

    The matrix has a row for each output channel, as in Miyato et al. (2018). With a kernel of one tap, this bounds the
    norm of the convolution itself; with k taps, that is at most the root of k.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Number of taps along each dimension.
        dims: 1 for sequences, 2 for pictures.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, dims: int) -> None:
        super().__init__()
        self.conv = _conv(in_channels, out_channels, kernel_size, dims=dims)

    def compute(self) -> Tensor:
        """Return the weight that is used."""
        weight = self.conv.weight
        return weight / torch.linalg.matrix_norm(weight.flatten(1), ord=2).clamp(min=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_channels, ...) to (B, out_channels, ...)."""
        convolve = F.conv1d if x.dim() == 3 else F.conv2d
        return convolve(x, self.cached(), self.conv.bias, padding=self.conv.padding)


def _conv(in_channels: int, out_channels: int, kernel_size: int, *, dims: int) -> nn.Conv1d | nn.Conv2d:
    """Return a convolution that keeps sizes."""
    return (nn.Conv1d, nn.Conv2d)[dims - 1](in_channels, out_channels, kernel_size, padding=kernel_size // 2)


class ChannelNorm(nn.LayerNorm):
    """Normalizes the channels of each position of (B, C, ...) by themselves, whatever the size of the input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized input."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class _Branch(nn.Module):
    """Two convolutions around which the input has a path of its own: h + conv(ReLU(conv(h))).

    Args:
        channels: Channels of input and output.
        dims: 1 for sequences, 2 for pictures.
        spectral_norm: Whether convolutions are `SpectralNormConv`, and the output is the mean of both paths.
    """

    def __init__(self, channels: int, *, dims: int = 1, spectral_norm: bool = False) -> None:
        super().__init__()
        make = SpectralNormConv if spectral_norm else _conv
        self.spectral_norm = spectral_norm
        self.up, self.down = (make(channels, channels, 3, dims=dims) for _ in range(2))

    def add_branch(self, h: Tensor) -> Tensor:
        """Map (B, channels, ...) to the same shape."""
        branch = self.down(F.relu(self.up(h)))
        return (h + branch) / 2 if self.spectral_norm else h + branch


class ResidualBlock(_Branch):
    """A residual block by itself."""

    def forward(self, h: Tensor) -> Tensor:
        """Map (B, channels, ...) to the same shape."""
        return self.add_branch(h)


class LoopedBlock(_Branch):
    """A residual block of a state that recalls the input at every step: h = recall(z, x), f(z; x) = h + g(h).

    Like many hand-written looped blocks it has no normalization, so that nothing bounds its state.

    Args:
        channels: Channels of the state and of the input.
        dims: 1 for sequences, 2 for pictures.
        recall: How h is made: "concat" maps state and input together by a linear map, "add" adds them, "decay" is a z +
            B x with factors a between 0 and 1, one for each channel, and "none" takes the state alone.
        spectral_norm: Whether convolutions are `SpectralNormConv`, and the output is the mean of h and g(h).
    """

    def __init__(self, channels: int, *, dims: int = 1, recall: Recall = "concat", spectral_norm: bool = False) -> None:
        super().__init__(channels, dims=dims, spectral_norm=spectral_norm)
        self.recall: Recall = recall
        if recall == "concat":
            self.adapter = (SpectralNormConv if spectral_norm else _conv)(2 * channels, channels, 1, dims=dims)
        elif recall == "decay":
            self.adapter = _conv(channels, channels, 1, dims=dims)
            self.rate = nn.Parameter(torch.zeros(channels, *[1] * dims))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Map a state and the encoded input, both (B, channels, ...), to a new state."""
        if self.recall == "concat":
            z = self.adapter(torch.cat([z, x], dim=1))
        elif self.recall == "add":
            z = z + x
        elif self.recall == "decay":
            z = torch.exp(-F.softplus(self.rate)) * z + self.adapter(x)
        return self.add_branch(z)


class TwoStates(nn.Module):
    """A block that a latent state and an answer take in turns: z <- f(z; x + y), then y <- f(y; z).

    Args:
        block: Maps (state, input) to a new state.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, state: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Map both states to new ones."""
        z, y = state
        z = self.block(z, x + y)
        return z, self.block(y, z)


class LoopedConv(AbstractEquilibriumModel):
    """Labels every position of a sequence or a picture by a block that is iterated from zero.

    By default, it is a looped model and not a DEQ: a fixed number of plain iterations, and backpropagation through all
    of them.

    Args:
        config: The sizes; see `LoopedConv.Config`.
        solver: How to iterate.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> model = LoopedConv(channels=8)
        >>> logits, eq = model.solve(torch.zeros(2, 1, 16))
        >>> logits.shape, eq.stats.num_evals.tolist()
        (torch.Size([2, 2, 16]), [12, 12])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """A looped block of convolutions over sequences or pictures."""

        input_channels: int = 1
        """Number of channels of the inputs."""
        channels: int = 32
        """Number of channels of the state z."""
        num_classes: int = 2
        """Number of classes to tell apart at each position."""
        dims: int = 1
        """1 for sequences, 2 for pictures."""
        recall: Recall = "concat"
        """How the block sees the input at each step: "concat" maps state and input together, "add" adds them, "decay"
        multiplies the state by learned factors below 1 and adds the mapped input, "none" starts from the input and does
        not see it again."""
        outer_norm: bool = False
        """Normalize the state that the block returns, at each position."""
        spectral_norm: bool = False
        """Divide weights by their spectral norms where these are above 1, and average the two paths of the block."""
        num_states: int = 1
        """1 for one state, 2 for a latent state and an answer that take turns in the same block."""
        num_outer_blocks: int = 0
        """Number of blocks before the loop, and after it, each with weights of its own."""
        start_noise: float = 0.0
        """Standard deviation of noise that is added to the start in training."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("input_channels", "channels", "num_classes"):
                check_count(name, getattr(self, name))
            for name in ("dims", "num_states"):
                if getattr(self, name) not in (1, 2):
                    raise ValueError(f"{name} is {getattr(self, name)!r}; it must be 1 or 2.")
            check_choice("recall", self.recall, get_args(Recall))
            check_count("num_outer_blocks", self.num_outer_blocks, minimum=0)
            check_not_negative("start_noise", self.start_noise)
            if self.num_states == 2 and self.recall == "none":
                raise ValueError('recall is "none"; two states take turns by recalling each other.')

    def __init__(
        self,
        config: LoopedConv.Config | None = None,
        *,
        solver: AbstractSolver = Picard(max_evals=12, tol=0.0),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Unrolled(),  # noqa: B008 (frozen)
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = LoopedConv.Config.resolve(config, fields)
        channels, dims = config.channels, config.dims

        def outer_blocks() -> list[nn.Module]:
            return [ResidualBlock(channels, dims=dims) for _ in range(config.num_outer_blocks)]

        self.encoder = _conv(config.input_channels, channels, 3, dims=dims)
        self.prelude = nn.Sequential(*outer_blocks())
        cell: nn.Module = LoopedBlock(channels, dims=dims, recall=config.recall, spectral_norm=config.spectral_norm)
        if config.outer_norm:
            cell = Normalized(cell, ChannelNorm(channels))
        if config.num_states == 2:
            cell = TwoStates(cell)
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)
        self.coda = nn.Sequential(*outer_blocks())
        self.head = _conv(channels, config.num_classes, 1, dims=dims)

    def encode(self, x: Tensor) -> tuple[Any, tuple[Tensor]]:
        """Return the start, and what the block recalls: the input after a convolution and the blocks before the loop.

        The start is zero, or what is not recalled, with noise in training if the config says so.
        """
        injected = self.prelude(self.encoder(x))
        start = injected if self.config.recall == "none" else torch.zeros_like(injected)
        if self.training and self.config.start_noise:
            start = start + self.config.start_noise * torch.randn_like(start)
        return (start, torch.zeros_like(start)) if self.config.num_states == 2 else start, (injected,)

    def decode(self, z: Any) -> Tensor:
        """Return the (B, num_classes, ...) logits of a state; of two states, the second is the answer."""
        return self.head(self.coda(z[1] if self.config.num_states == 2 else z))
