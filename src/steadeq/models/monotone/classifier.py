"""The monotone DEQ of the paper's Table 2, with one scale or with several tiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._internal.validation import check_choice, check_count, check_positive
from ...adjoints import AbstractAdjoint, Implicit
from ...nn import DEQ
from ...solvers import GMRES, AbstractSolver, Picard
from ..base import AbstractEquilibriumModel, AbstractModelConfig
from .cell import MonotoneCell, SharedStep, Splitting
from .convolution import MonotoneConv, MonotoneMultiConv, check_halvings
from .operator import MonotoneLinear

Kind = Literal["conv", "dense"]

_POOL = 4


class MonotoneDEQ(AbstractEquilibriumModel):
    """Classifies images by the equilibrium z = ReLU(W z + U x + b), which exists and is unique for every image.

    Plain iteration converges from anywhere; Anderson usually needs fewer evaluations, but has no such guarantee. The
    solver works on the state of the splitting method, whose resolvent is computed once per solve. `Implicit` has no
    second derivative for that reason; the Jacobian penalty needs none.

    Args:
        config: The sizes; see `MonotoneDEQ.Config`.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> model = MonotoneDEQ(channels=6)
        >>> logits, eq = model.solve(torch.rand(2, 1, 8, 8))
        >>> logits.shape, eq.stats.converged.tolist()
        (torch.Size([2, 10]), [True, True])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """A monotone operator equilibrium network."""

        image_channels: int = 1
        """Number of channels of the images: 1 for gray, 3 for color."""
        channels: int = 24
        """Number of channels of the state z; with kind "dense", its number of features."""
        tiers: tuple[int, ...] = ()
        """Number of channels of each further tier of the state, at half the resolution of the one before; none for a
        single tier."""
        num_classes: int = 10
        """Number of classes to tell apart."""
        image_size: int = 8
        """Height and width of the images, in pixels."""
        kind: Kind = "conv"
        """Kind of the linear operator: "conv" for a circular convolution, "dense" for a full matrix on a state without
        space."""
        splitting: Splitting = "peaceman-rachford"
        """Operator splitting method that is iterated to find the equilibrium."""
        alpha: float | None = None
        """Step size of the splitting method; None computes it from the weights."""
        m: float = 1.0
        """Margin of monotonicity, above 0: the smallest eigenvalue that the symmetric part of I - W may have."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("image_channels", "channels", "num_classes", "image_size"):
                check_count(name, getattr(self, name))
            for channels in self.tiers:
                check_count("tiers", channels)
            check_choice("kind", self.kind, get_args(Kind))
            check_choice("splitting", self.splitting, get_args(Splitting))
            if self.alpha is not None:
                check_positive("alpha", self.alpha)
            check_positive("m", self.m)
            if self.kind == "dense" and self.tiers:
                raise ValueError(f"tiers is {self.tiers}; a dense state has no tiers, use kind='conv'.")
            if self.kind == "conv" and not self.tiers and self.image_size < _POOL:
                raise ValueError(f"image_size is {self.image_size}; the decoder needs at least {_POOL}.")
            check_halvings("image_size", self.image_size, len(self.tiers))

    def __init__(
        self,
        config: MonotoneDEQ.Config | None = None,
        *,
        solver: AbstractSolver = Picard(max_evals=50, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=20, tol=1e-4)),  # noqa: B008 (frozen)
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = MonotoneDEQ.Config.resolve(config, fields)
        channels, size = config.channels, config.image_size
        if config.kind == "dense":
            operator = MonotoneLinear(features=channels, m=config.m)
            self.injection = nn.Sequential(nn.Flatten(), nn.Linear(config.image_channels * size**2, channels))
            features = channels
        else:
            if config.tiers:
                operator = MonotoneMultiConv(channels=(channels, *config.tiers), size=(size, size), m=config.m)
                features = config.tiers[-1] * (size >> len(config.tiers)) ** 2
            else:
                operator = MonotoneConv(channels=channels, size=(size, size), m=config.m)
                features = channels * (size // _POOL) ** 2
            # Winston and Kolter pad the images by one pixel and hold the state at zero there; without it states keep
            # their size, for which the transform is fast.
            self.injection = nn.Conv2d(config.image_channels, channels, 3, padding=1, padding_mode="circular")
        self.head = nn.Linear(features, config.num_classes)
        cell = MonotoneCell(operator, splitting=config.splitting, alpha=config.alpha)
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)

    @property
    def cell(self) -> MonotoneCell:
        """The splitting method around the operator."""
        return cast("MonotoneCell", self.layer.cell)

    def encode(self, x: Tensor) -> tuple[Any, tuple[Any, SharedStep]]:
        """Return zeros as the start; the inputs are U x + b, for the finest tier, and what all evaluations share."""
        injected = self.injection(x)
        # Under autocast the state keeps the precision of the parameters.
        start = torch.zeros_like(injected, dtype=self.head.weight.dtype)
        if not self.config.tiers:
            return start, (injected, self.cell.prepare())
        size = self.config.image_size
        coarser = [
            start.new_zeros(x.shape[0], channels, size >> tier, size >> tier)
            for tier, channels in enumerate(self.config.tiers, start=1)
        ]
        return (start, *coarser), ((injected, *coarser), self.cell.prepare())

    def decode(self, z: Any) -> Tensor:
        """Return the logits: a linear map of the equilibrium that a state stands for.

        A single scale is averaged over 4 by 4 pixels first; of several tiers, only the coarsest is used.
        """
        z = self.cell.equilibrium(z)
        if self.config.tiers:
            z = z[-1]
        elif self.config.kind == "conv":
            z = F.avg_pool2d(z, _POOL)
        return self.head(z.flatten(1))
