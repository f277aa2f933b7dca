"""A block of convolutions over sequences that is iterated, as looped and recursive models iterate theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._internal.validation import check_count
from ..adjoints import AbstractAdjoint, Unrolled
from ..nn import DEQ
from ..solvers import AbstractSolver, Picard
from .base import AbstractEquilibriumModel, AbstractModelConfig


class LoopedBlock(nn.Module):
    """A residual block that sees the input at every step: h = adapter(z, x), f(z; x) = h + conv(ReLU(conv(h))).

    Like many hand-written looped blocks it has no normalization, so that nothing bounds its state.

    Args:
        channels: Channels of the state and of the input.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.adapter = nn.Conv1d(2 * channels, channels, 1)
        self.up, self.down = (nn.Conv1d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Map a state and the encoded input, both (B, channels, L), to a new state."""
        h = self.adapter(torch.cat([z, x], dim=1))
        return h + self.down(F.relu(self.up(h)))


class LoopedConv(AbstractEquilibriumModel):
    """Labels every position of a sequence by a block that is iterated from zero.

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
        """A looped block of convolutions over sequences."""

        input_channels: int = 1
        """Number of channels of the input sequences."""
        channels: int = 32
        """Number of channels of the state z."""
        num_classes: int = 2
        """Number of classes to tell apart at each position."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("input_channels", "channels", "num_classes"):
                check_count(name, getattr(self, name))

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
        self.encoder = nn.Conv1d(config.input_channels, config.channels, 3, padding=1)
        self.layer = DEQ(LoopedBlock(config.channels), solver=solver, adjoint=adjoint)
        self.head = nn.Conv1d(config.channels, config.num_classes, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """Return zeros as the start, and the sequence after a convolution as the input of the block."""
        injected = self.encoder(x)
        return torch.zeros_like(injected), (injected,)

    def decode(self, z: Tensor) -> Tensor:
        """Return the (B, num_classes, L) logits."""
        return self.head(z)
