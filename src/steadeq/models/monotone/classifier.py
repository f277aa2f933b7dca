"""The monotone DEQ of the paper's Table 2, with a single scale."""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...adjoint import AbstractAdjoint, Implicit
from ...nn import DEQ
from ...solvers import GMRES, AbstractSolver, Picard
from ...solvers.base import check_choice
from ..base import AbstractEquilibriumModel
from .cell import MonotoneCell, SharedStep, Splitting
from .operator import MonotoneConv, MonotoneLinear

Kind = Literal["conv", "dense"]

_POOL = 4


class MonotoneDEQ(AbstractEquilibriumModel):
    """Classifies images by the equilibrium z = ReLU(W z + U x + b), which exists, once, for every image.

    Plain iteration converges from anywhere; Anderson needs fewer evaluations as a rule, without that promise. The
    solver works on the state of the splitting method, whose resolvent is computed once per solve. `Implicit` has no
    second derivative for that reason; the Jacobian penalty needs none.

    Args:
        image_channels: Of the images.
        channels: Of the state; the length of the state if it is dense.
        num_classes: Number of classes.
        image_size: Height and width of the images.
        kind: "conv" for circular convolutions, "dense" for a full matrix on a state without space.
        splitting: Which method to iterate; see `MonotoneCell`.
        alpha: Its step size; see `MonotoneCell`.
        m: Margin of monotonicity.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.

    Example:
        >>> model = MonotoneDEQ(channels=6)
        >>> logits, solution = model(torch.rand(2, 1, 8, 8))
        >>> logits.shape, solution.converged.tolist()
        (torch.Size([2, 10]), [True, True])
    """

    def __init__(
        self,
        *,
        image_channels: int = 1,
        channels: int = 24,
        num_classes: int = 10,
        image_size: int = 8,
        kind: Kind = "conv",
        splitting: Splitting = "peaceman-rachford",
        alpha: float | None = None,
        m: float = 1.0,
        solver: AbstractSolver = Picard(max_evals=50, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=20, tol=1e-4)),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        check_choice("kind", kind, get_args(Kind))
        if kind == "conv":
            if image_size < _POOL:
                raise ValueError(f"image_size is {image_size}; the read-out needs at least {_POOL}.")
            operator = MonotoneConv(channels=channels, size=(image_size, image_size), m=m)
            self.injection = nn.Conv2d(image_channels, channels, 3, padding=1, padding_mode="circular")
            # Winston and Kolter pad the images by one pixel and hold the state at zero there, which gives the same
            # number of parameters; without it states keep their size, for which the transform is fast.
            self.head = nn.Linear(channels * (image_size // _POOL) ** 2, num_classes)
        else:
            operator = MonotoneLinear(features=channels, m=m)
            self.injection = nn.Sequential(nn.Flatten(), nn.Linear(image_channels * image_size**2, channels))
            self.head = nn.Linear(channels, num_classes)
        self.layer = DEQ(MonotoneCell(operator, splitting=splitting, alpha=alpha), solver=solver, adjoint=adjoint)

    @property
    def cell(self) -> MonotoneCell:
        """The splitting method around the operator."""
        return cast("MonotoneCell", self.layer.cell)

    def inject(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, SharedStep]]:
        """Start at zero; the cell takes U x + b, and what the evaluations share."""
        injected = self.injection(x)
        # Under autocast the state keeps the precision of the parameters.
        return torch.zeros_like(injected, dtype=self.head.weight.dtype), (injected, self.cell.prepare())

    def read_out(self, z: Tensor) -> Tensor:
        """Return the logits: a linear map of the equilibrium that a state stands for, averaged over 4 by 4 pixels."""
        z = self.cell.equilibrium(z)
        return self.head((z if z.dim() == 2 else F.avg_pool2d(z, _POOL)).flatten(1))
