"""Whether f is a function: the same image whenever it is evaluated at the same point.

Dropout with a new mask at every call, or noise of any kind, leaves nothing to converge to. The residual that the solver
found at its last state is compared with the residual of the evaluation that attaches the graph there; f is evaluated
once more only if the two differ. If that evaluation repeats itself and still differs from what the solver saw, the
samples depend on each other, or f remembers earlier calls. Batch norm in training mode is a function of the batch and
not of a sample; it is recognized by its class.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..equilibrium import RandomnessWarning, SolveStats
from .independence import MISSED, are_coupled, correct, departure, modules_of
from .linearization import Linearization


@torch.no_grad()
def check_steady(
    cell: Callable[..., Any], point: Linearization, start: Tensor, z: Tensor, stats: SolveStats
) -> SolveStats:
    """Return the stats of a solve, with the residual that f has now where that is another one, and warn then.

    Args:
        cell: The map as the caller has it, whose modules can be named.
        point: f evaluated at the state that was found, with its graph.
        start: (B, D) state at which the solver started.
        z: (B, D) state that it found.
        stats: What the solver says of it.

    Raises:
        ValueError: The samples of the batch see each other.
    """
    norms = _in_training(cell, _BatchNorm)
    if norms:
        _warn(
            f"The cell has batch norm in training mode ({norms}), which makes the samples of a batch depend on each "
            "other",
            "Keep it out of the cell or in eval mode: in training mode it also updates its statistics at every "
            "evaluation.",
        )
    image = point.fz.detach()
    change, size = departure(image, z, start, stats.residual)
    # Compaction and compiled code round otherwise, by a few eps of the image. The root of eps is far above that and,
    # even for half precision, below what masks do; a twentieth of it, as norms differ less than images do. What
    # exceeds it by mistake costs one evaluation, by the same code on the same batch, and no warning.
    rounding = math.sqrt(point.layout.eps) * size
    # NaN, which samples have that are not finite, exceeds nothing.
    if not bool((change > 0.05 * rounding).any()):
        return stats
    is_off = change > rounding + stats.residual * size
    if bool((torch.linalg.vector_norm(point.evaluate() - image, dim=1) > rounding).any()):
        dropouts = _in_training(cell, _DropoutNd)
        where = f" ({dropouts} in training mode)" if dropouts else ""
        _warn(
            f"f is random between evaluations{where}, so that there is no fixed point to find",
            "Instead of dropout, use steadeq.nn.VariationalDropout, which keeps one mask for a whole solve, or pass "
            "random values as an input.",
        )
    elif norms or not bool(is_off.any()):
        return stats
    elif point.layout.batch_dims and len(z) > 1 and are_coupled(point.vjp, z):
        raise ValueError(MISSED)
    else:
        _warn(
            "f returns something else at the final state than during the solve, as if it remembered earlier calls",
            "Pass what it remembers as an input, or as a part of the state.",
        )
    return correct(stats, image, z, is_off)


def _warn(what: str, advice: str) -> None:
    warnings.warn(
        f"{what}, and the gradient does not belong to the returned state. {advice}",
        RandomnessWarning,
        stacklevel=1,
    )


def _in_training(cell: Callable[..., Any], kind: type[nn.Module]) -> str:
    """Name the modules of a kind that are in training mode, among those that the cell is or refers to."""
    return ", ".join(
        f"{name or 'itself'}: {type(module).__name__}"
        for owner in modules_of(cell)
        for name, module in owner.named_modules()
        if isinstance(module, kind) and module.training
    )
