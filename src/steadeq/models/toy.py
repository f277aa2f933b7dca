"""The scalar model of the synthetic study (section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._internal.validation import check_count
from ..adjoints import AbstractAdjoint, Implicit
from ..nn import DEQ
from ..solvers import GMRES, AbstractSolver, Anderson
from .base import AbstractEquilibriumModel, AbstractModelConfig


class ToyCell(nn.Module):
    """f(z; x) = W2ᵀ ReLU(W1 z + U x + b) with scalar z and x.

    Args:
        hidden: Number of ReLUs.
    """

    def __init__(self, *, hidden: int) -> None:
        super().__init__()
        self.W1 = nn.Parameter(torch.empty(hidden, 1))
        self.W2 = nn.Parameter(torch.empty(hidden, 1))
        self.U = nn.Parameter(torch.empty(hidden, 1))
        self.b = nn.Parameter(torch.empty(hidden))
        # Paper: N(0, 0.01) for all parameters. From there the fit is poor after the paper's 50 epochs; these are the
        # scales of torch's linear layers.
        for parameter, fan_in in ((self.W1, 1), (self.U, 1), (self.b, 1), (self.W2, hidden)):
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Map (B, 1) states and (B, 1) inputs to new states."""
        return torch.relu(torch.addmm(self.b, z, self.W1.T) + x @ self.U.T) @ self.W2


class ToyDEQ(AbstractEquilibriumModel):
    """A function of one variable as the equilibrium of a 200-parameter cell: y(x) = z*(x).

    Args:
        config: The sizes; see `ToyDEQ.Config`.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> model = ToyDEQ()
        >>> sum(p.numel() for p in model.parameters())
        200
        >>> model(torch.linspace(-1, 1, 5)[:, None]).shape
        torch.Size([5, 1])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """The scalar model of the synthetic study, f(z; x) = W2ᵀ ReLU(W1 z + U x + b)."""

        hidden: int = 50
        """Number of ReLUs of the cell; 50 give the 200 parameters of the paper."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_count("hidden", self.hidden)

    def __init__(
        self,
        config: ToyDEQ.Config | None = None,
        *,
        solver: AbstractSolver = Anderson(max_evals=6, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=6, tol=1e-4)),  # noqa: B008 (frozen)
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = ToyDEQ.Config.resolve(config, fields)
        self.layer = DEQ(ToyCell(hidden=self.config.hidden), solver=solver, adjoint=adjoint)

    def encode(self, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """Return zeros as the start, and x as the input of the cell."""
        return torch.zeros_like(x), (x,)

    def decode(self, z: Tensor) -> Tensor:
        """Return the equilibrium itself."""
        return z
