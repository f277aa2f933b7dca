"""Where solves begin: random starts, and the best of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._fixed_point import fixed_point
from .._internal.masks import hold_masks, without_empty
from .._internal.trees import leaves, map_tensors, rebuild
from .._internal.validation import check_positive
from ..equilibrium import Equilibrium, SolveStats
from ..solvers import AbstractSolver, Anderson


class GaussianStart:
    """Random starts for a layer: `DEQ(cell, init=GaussianStart(std=1.0))`.

    A loop that is trained from random starts learns to reach the same state from all of them.

    Args:
        std: Standard deviation of each entry.
        generator: Source of randomness; torch's own if not given.

    Example:
        >>> GaussianStart(std=0.5, generator=torch.Generator().manual_seed(0))(torch.zeros(1, 3))
        tensor([[ 0.7705, -0.1467, -1.0894]])
    """

    def __init__(self, std: float = 1.0, *, generator: torch.Generator | None = None) -> None:
        check_positive("std", std)
        self.std, self.generator = std, generator

    def __call__(self, x: Any, *inputs: Any) -> Any:
        """Return a state like the first input."""
        return map_tensors(self._draw, x)

    def _draw(self, like: torch.Tensor) -> torch.Tensor:
        device = like.device if self.generator is None else self.generator.device
        drawn = torch.randn(like.shape, generator=self.generator, dtype=like.dtype, device=device)
        return (self.std * drawn).to(like.device)


@torch.no_grad()
def solve_from_starts(
    f: Callable[..., Any],
    starts: Sequence[Any],
    *inputs: Any,
    solver: AbstractSolver = Anderson(),  # noqa: B008 (frozen)
) -> Equilibrium:
    """Solve from several starts, and keep for each sample the state with the smallest residual; for inference.

    A model that does not settle from one start may settle from another, and the residual shows which one without
    knowing the answer (EqR, 2026).

    Args:
        f: The map; returns a state structured like its first argument.
        starts: States to start from, at least one.
        *inputs: Further arguments of f, batched along dim 0.
        solver: How to find the fixed points.

    Returns:
        The equilibrium, without a graph. Residual and status of a sample belong to its state, and `num_evals` is the
        sum over all starts.

    Example:
        >>> f = lambda z: torch.where(z > 1, 2 * z, z / 2)  # comes to rest from below 1 only
        >>> eq = solve_from_starts(f, [torch.full((1, 1), 2.0), torch.full((1, 1), 0.5)])
        >>> eq.stats.converged.tolist(), abs(eq.z.item()) < 1e-3
        ([True], True)
    """
    if not starts:
        raise ValueError("starts is empty; there must be at least one.")
    # All starts of one problem have the same dropout masks.
    held = hold_masks(f)
    found = [fixed_point(held, z0, *inputs, solver=solver) for z0 in starts]
    stats = [eq.stats for eq in found if eq.stats is not None]
    best = torch.stack([s.residual.nan_to_num(nan=torch.inf) for s in stats]).argmin(dim=0)
    rows = torch.arange(len(best), device=best.device)

    def choose(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(list(tensors))[best, rows]

    return Equilibrium(
        without_empty(held),
        rebuild(found[0].z, map(choose, zip(*(leaves(eq.z) for eq in found), strict=True))),
        inputs,
        stats=SolveStats(
            residual=choose([s.residual for s in stats]),
            num_evals=torch.stack([s.num_evals for s in stats]).sum(dim=0),
            status=choose([s.status for s in stats]),
            trace=torch.cat([s.trace for s in stats]),
        ),
    )
