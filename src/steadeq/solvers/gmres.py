"""GMRES, for the linear systems of implicit differentiation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._internal.norms import row_norm
from .._internal.validation import check_count
from ..equilibrium import SolveStats, Status
from ._krylov import Arnoldi, LeastResidual, unit
from ._progress import Progress, Scale, Seen
from ._window import combine, to_host
from .base import WINDOW, AbstractLinearSolver


@dataclass(frozen=True, kw_only=True)
class GMRES(AbstractLinearSolver):
    """The generalized minimal residual method: one product per step, and a residual that never grows.

    The default for the backward pass, which solves u = Jᵀu + g and stops each sample at ‖u - Jᵀu - g‖ <= tol ‖g‖.

    Example:
        >>> import torch
        >>> M = torch.tensor([[0.5, 2.0], [0.0, -3.0]])
        >>> u, stats = GMRES(tol=1e-5).solve_linear(lambda u: u @ M.T, torch.ones(1, 2))
        >>> u
        tensor([[3.0000, 0.2500]])
    """

    max_evals: int = 40
    """Budget of a backward solve: the most vector-Jacobian products."""
    tol: float = 1e-6
    """Relative residual at which a sample is finished; 0 spends the whole budget."""
    memory: int | None = None
    """Dimension of the Krylov space at which the method restarts, where each dimension takes the memory of one state;
    None never restarts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_count("memory", self.memory)

    def num_quiet_windows(self, dim: int) -> int:
        """Return the windows of one Krylov space, in which the residual may stand still up to the last product."""
        return 1 + min(self.memory or self.max_evals, dim) // WINDOW

    def solve_linear(self, operator: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, SolveStats]:
        """Solve u = operator(u) + b for each row."""
        memory = self.memory or self.max_evals
        scale = row_norm(b)
        u, rest = torch.zeros_like(b), unit(b, scale)
        kept = torch.zeros_like(scale)
        eps = torch.finfo(b.dtype).eps
        # Kept of the best residual: with how many products it was reached.
        num_products = torch.zeros_like(scale).unsqueeze(1)
        start, one = (scale != 0).to(scale.dtype), torch.ones_like(scale)
        # Nothing grows here, however large a residual is.
        size = Scale.of(one, one)
        progress = Progress(num_products, self, dim=b.shape[1], eps=eps, residual=start)
        counts = torch.arange(1, self.max_evals + 1, dtype=scale.dtype, device=scale.device).unbind()
        while progress.goes_on:
            num_before = progress.num_evals
            capacity = min(memory, self.max_evals - num_before)
            space = Arnoldi(rest, capacity, may_sync=progress.may_sync)
            least = LeastResidual(space)
            while progress.goes_on and space.size < space.capacity:
                residual = least.extend(*space.extend(operator(space.newest)))
                seen = Seen(residual.expand(2, -1), residual, one, size)
                progress.record(counts[progress.num_evals].expand(b.shape[0], 1), seen)
            done = progress.kept
            used = (done.best[:, 0].long() - num_before).clamp(min=0)
            weights, rest, kept = least.minimize(used)
            # What rounding adds to a solution up to a hundred times as long as b is nothing to step back for.
            reached = torch.where(done.is_running, done.measures[1], done.residual)
            threshold = (1.01 * reached + 400 * eps).clamp(min=self.tol)
            is_broken = (used > 0) & ~(kept <= threshold)
            # The one question of a solve that is told not to ask: it is rarely answered by yes, and then costs much.
            if to_host(is_broken.any()):
                # Late columns may have made the system singular up to rounding; what came before them stands.
                weights, rest, kept = least.step_back(used, (weights, rest, kept), is_broken)
            u = combine(u, weights, space.basis[:, : space.size])
        stats = progress.result()
        # What rounding may add is left out where it is small beside the tolerance, so that it decides nothing.
        bare = torch.linalg.vector_norm(rest, dim=1)
        kept = torch.where(kept - bare <= 0.1 * self.tol, bare, kept)
        # The residual that u has, where it is not the one that the recurrence promised.
        is_off = kept > (1.01 * stats.residual).clamp(min=100 * eps)
        is_misjudged = is_off & stats.converged & (kept > self.tol)
        return u * scale[:, None], replace(
            stats,
            residual=torch.where(is_off, kept, stats.residual),
            status=torch.where(is_misjudged, int(Status.STAGNATED), stats.status),
        )
