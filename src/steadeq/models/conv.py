"""A small convolutional DEQ with a single scale, for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._internal.validation import check_choice, check_count
from ..adjoints import AbstractAdjoint, Implicit
from ..nn import DEQ
from ..solvers import GMRES, AbstractSolver, Anderson
from .base import AbstractEquilibriumModel, AbstractModelConfig

Activation = Literal["relu", "softplus"]


class ConvCell(nn.Module):
    """Two convolutions around the input: f(z; x) = GN(ReLU(x + GN(conv(ReLU(GN(conv(z))))))).

    There is no skip connection: the equilibrium itself plays that part.

    Args:
        channels: Number of channels of the state.
        hidden: Number of channels between the two convolutions.
        groups: Number of groups of every GroupNorm.
        activation: Activation to use instead of ReLU.
    """

    def __init__(self, *, channels: int, hidden: int, groups: int, activation: Activation = "relu") -> None:
        super().__init__()
        self.activation = {"relu": F.relu, "softplus": F.softplus}[activation]
        self.conv1 = nn.Conv2d(channels, hidden, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(hidden, channels, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, hidden)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.norm3 = nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Map a state and the encoded input, both (B, channels, H, W), to a new state."""
        h = self.activation(self.norm1(self.conv1(z)))
        return self.norm3(self.activation(x + self.norm2(self.conv2(h))))


class ConvDEQ(AbstractEquilibriumModel):
    """Classifies images by the equilibrium of two convolutions.

    Args:
        config: The sizes; see `ConvDEQ.Config`.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> model = ConvDEQ(channels=8, hidden=16)
        >>> logits, eq = model.solve(torch.zeros(2, 1, 8, 8))
        >>> logits.shape, eq.stats.num_evals.shape
        (torch.Size([2, 10]), torch.Size([2]))
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """A convolutional DEQ with a single scale."""

        image_channels: int = 1
        """Number of channels of the images: 1 for gray, 3 for color."""
        channels: int = 24
        """Number of channels of the state z."""
        hidden: int = 48
        """Number of channels between the two convolutions of the cell."""
        groups: int = 4
        """Number of groups of every GroupNorm."""
        stride: int = 1
        """Stride of the convolution that encodes the images: 1 keeps their resolution, 2 halves it."""
        num_classes: int = 10
        """Number of classes to tell apart."""
        activation: Activation = "relu"
        """Activation of the cell; "softplus" is smooth."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_choice("activation", self.activation, get_args(Activation))
            for name in ("image_channels", "channels", "hidden", "groups", "stride", "num_classes"):
                check_count(name, getattr(self, name))
            for name in ("channels", "hidden"):
                width = getattr(self, name)
                if width % self.groups:
                    raise ValueError(f"{name} is {width}; it must be a multiple of groups ({self.groups}).")

    def __init__(
        self,
        config: ConvDEQ.Config | None = None,
        *,
        solver: AbstractSolver = Anderson(max_evals=12, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=12, tol=1e-4)),  # noqa: B008 (frozen)
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = ConvDEQ.Config.resolve(config, fields)
        self.injection = nn.Sequential(
            nn.Conv2d(config.image_channels, config.channels, 3, stride=config.stride, padding=1, bias=False),
            nn.GroupNorm(config.groups, config.channels),
        )
        cell = ConvCell(
            channels=config.channels, hidden=config.hidden, groups=config.groups, activation=config.activation
        )
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)
        self.head = nn.Linear(config.channels * 16, config.num_classes)

    def encode(self, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """Return zeros as the start, and the image after a convolution as the input of the cell."""
        injected = self.injection(x)
        return torch.zeros_like(injected), (injected,)

    def decode(self, z: Tensor) -> Tensor:
        """Return the logits: a linear map of the state, averaged over a 4 by 4 grid."""
        return self.head(F.adaptive_avg_pool2d(z, 4).flatten(1))
