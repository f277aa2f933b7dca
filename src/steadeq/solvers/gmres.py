"""GMRES for affine maps, and for the linear systems of implicit differentiation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..solution import Solution, Status
from .base import WINDOW, AbstractSolver, Rule, check_count
from .history import combine
from .krylov import Arnoldi, LeastResidual, unit
from .loop import Progress
from .newton_krylov import NewtonKrylovRule


@dataclass(frozen=True, kw_only=True)
class GMRES(AbstractSolver):
    """The generalized minimal residual method: optimal in the Krylov space, one product per step, monotone.

    The default for the backward pass, which solves u = Jᵀu + g and stops each sample at ‖u - Jᵀu - g‖ <= tol ‖g‖. As a
    forward solver it is meant for maps f that are affine in z; products are then taken as differences of evaluations,
    and the result is evaluated before it is believed.

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> M = torch.tensor([[0.5, 2.0], [0.0, -3.0]])
        >>> fixed_point(lambda z: z @ M.T + 1, torch.zeros(1, 2), solver=GMRES(tol=1e-5)).value
        tensor([[3.0000, 0.2500]])
    """

    max_evals: int = 40
    """The most evaluations (in the backward pass: vector-Jacobian products) that a solve may spend."""
    tol: float = 1e-6
    """Relative residual at which a sample is finished; 0 spends the whole budget."""
    memory: int = 40
    """Dimension of the Krylov space at which it is restarted; each dimension costs one state."""

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that make no sense."""
        super().__post_init__()
        check_count("memory", self.memory)

    def start(self, z: Tensor, eps: float) -> Rule:
        """Return a fresh rule for an affine map: one Newton step, whose linear system is solved to the tolerance."""
        return NewtonKrylovRule(
            z, max_evals=self.max_evals, tol=self.tol, memory=self.memory, probe_length=1.0, is_affine=True
        )

    def solve_linear(self, operator: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, Solution]:
        """Solve u = operator(u) + b for each row.

        Args:
            operator: A linear map of (B, D) matrices that acts on each row by itself.
            b: (B, D) right-hand sides.

        Returns:
            The (B, D) solution and its statistics; residuals are ‖r‖ / ‖b‖.
        """
        scale = torch.linalg.vector_norm(b, dim=1)
        u, rest = torch.zeros_like(b), unit(b, scale)
        kept = torch.zeros_like(scale)
        eps = torch.finfo(b.dtype).eps
        # Within one Krylov space the residual may stand still up to the last product.
        num_quiet_windows = 1 + min(self.memory, b.shape[1]) // WINDOW
        # What the bookkeeping carries as the value is the number of products behind the best residual.
        num_products = torch.zeros_like(scale).unsqueeze(1)
        progress = Progress(num_products, (scale != 0).to(scale.dtype), self, eps, num_quiet_windows=num_quiet_windows)
        counts = torch.arange(1, self.max_evals + 1, dtype=scale.dtype, device=scale.device).unbind()
        while progress.goes_on:
            num_before = progress.num_evals
            space = Arnoldi(rest, min(self.memory, self.max_evals - num_before))
            least = LeastResidual(space)
            while progress.goes_on and space.size < space.capacity:
                residual = least.extend(*space.extend(operator(space.newest)))
                progress.record(counts[progress.num_evals].expand(b.shape[0], 1), residual.expand(2, -1))
            used = (progress.values()[:, 0].long() - num_before).clamp(min=0)
            weights, rest, kept = least.minimize(used)
            # What rounding adds to a solution up to a hundred times as long as b is nothing to step back for.
            threshold = (1.01 * progress.residuals() + 400 * eps).clamp(min=self.tol)
            is_broken = (used > 0) & ~(kept <= threshold)
            if bool(is_broken.any()):
                # Late columns may have made the system singular up to rounding; what came before them stands.
                weights, rest, kept = least.step_back(used, (weights, rest, kept), is_broken)
            u = combine(u, weights, space.basis[:, : space.size])
        solution = progress.conclude()
        # The residual that u has, where it is not the one that the recurrence promised.
        is_off = kept > (1.01 * solution.residual).clamp(min=100 * eps)
        is_misjudged = is_off & solution.converged & (kept > self.tol)
        return u * scale[:, None], replace(
            solution,
            residual=torch.where(is_off, kept, solution.residual),
            status=torch.where(is_misjudged, int(Status.STAGNATED), solution.status),
        )
