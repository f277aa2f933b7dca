"""A small convolutional DEQ with a single scale, for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..adjoint import AbstractAdjoint, Implicit
from ..nn import DEQ
from ..solvers import GMRES, AbstractSolver, Anderson
from .base import AbstractEquilibriumModel


class ConvCell(nn.Module):
    """Two convolutions around the input: f(z; x) = GN(ReLU(x + GN(conv(ReLU(GN(conv(z))))))).

    There is no skip connection: the equilibrium itself plays that part.

    Args:
        channels: Of the state.
        hidden: Between the two convolutions.
        groups: Of the group normalizations.
    """

    def __init__(self, *, channels: int, hidden: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, hidden, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(hidden, channels, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, hidden)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.norm3 = nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Map a state and the injected input, both (B, channels, H, W), to a new state."""
        h = F.relu(self.norm1(self.conv1(z)))
        return self.norm3(F.relu(x + self.norm2(self.conv2(h))))


class ConvDEQ(AbstractEquilibriumModel):
    """Classifies images by the equilibrium of two convolutions.

    Args:
        image_channels: Of the images.
        channels: Of the state.
        hidden: Between the two convolutions of the cell.
        groups: Of the group normalizations.
        num_classes: Number of classes.
        stride: Of the injection: 2 halves the resolution of the state.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.

    Example:
        >>> model = ConvDEQ(channels=8, hidden=16)
        >>> logits, solution = model(torch.zeros(2, 1, 8, 8))
        >>> logits.shape, solution.num_evals.shape
        (torch.Size([2, 10]), torch.Size([2]))
    """

    def __init__(
        self,
        *,
        image_channels: int = 1,
        channels: int = 24,
        hidden: int = 48,
        groups: int = 4,
        num_classes: int = 10,
        stride: int = 1,
        solver: AbstractSolver = Anderson(max_evals=12, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=12, tol=1e-4)),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        for name, width in (("channels", channels), ("hidden", hidden)):
            if width % groups:
                raise ValueError(f"{name} is {width}; it must be a multiple of groups ({groups}).")
        self.injection = nn.Sequential(
            nn.Conv2d(image_channels, channels, 3, stride=stride, padding=1, bias=False), nn.GroupNorm(groups, channels)
        )
        self.layer = DEQ(ConvCell(channels=channels, hidden=hidden, groups=groups), solver=solver, adjoint=adjoint)
        self.head = nn.Linear(channels * 16, num_classes)

    def inject(self, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """Start at zero; the cell takes the image after a convolution."""
        injected = self.injection(x)
        return torch.zeros_like(injected), (injected,)

    def read_out(self, z: Tensor) -> Tensor:
        """Return the logits: a linear map of the state, averaged over a 4 by 4 grid."""
        return self.head(F.adaptive_avg_pool2d(z, 4).flatten(1))
