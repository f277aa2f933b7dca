"""The scalar model of the synthetic study (section 5.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..adjoint import AbstractAdjoint, Implicit
from ..nn import DEQ
from ..solvers import GMRES, AbstractSolver, Anderson
from .base import AbstractEquilibriumModel


class ToyCell(nn.Module):
    """f(z; x) = W2ᵀ ReLU(W1 z + U x + b) with scalar z and x.

    Args:
        hidden: Number of ReLUs.
    """

    def __init__(self, *, hidden: int = 50) -> None:
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
        hidden: Number of ReLUs; 50 give the 200 parameters of the paper.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.

    Example:
        >>> model = ToyDEQ()
        >>> sum(p.numel() for p in model.parameters())
        200
        >>> y, solution = model(torch.linspace(-1, 1, 5)[:, None])
        >>> y.shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        *,
        hidden: int = 50,
        solver: AbstractSolver = Anderson(max_evals=6, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=6, tol=1e-4)),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.layer = DEQ(ToyCell(hidden=hidden), solver=solver, adjoint=adjoint)

    def inject(self, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """Start at zero; the cell takes x as it is."""
        return torch.zeros_like(x), (x,)

    def read_out(self, z: Tensor) -> Tensor:
        """Return the equilibrium itself."""
        return z
