"""Whether f is a function: the same image whenever it is evaluated at the same point.

Dropout with a new mask at every call, or noise of any kind, leaves nothing to converge to. The residual that the solver
found at its last state is compared with the residual of the evaluation that attaches the graph there; f is evaluated
once more only if the two differ. Batch norm in training mode is a function of the batch and not of a sample; it is
recognized by its class.
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

from ..equilibrium import RandomnessWarning
from .linearization import Linearization
from .masks import owner_of


@torch.no_grad()
def warn_if_random(cell: Callable[..., Any], point: Linearization, start: Tensor, z: Tensor, residual: Tensor) -> None:
    """Warn if f is random between evaluations, or has batch norm in training mode.

    Args:
        cell: The map as the caller has it, whose modules can be named.
        point: f evaluated at the state that was found, with its graph.
        start: (B, D) state at which the solver started.
        z: (B, D) state that it found.
        residual: (B,) relative residual of that state, as the solver saw it.
    """
    norms = _in_training(cell, _BatchNorm)
    if norms:
        _warn(
            f"The cell has batch norm in training mode ({norms}), which makes the samples of a batch depend on each "
            "other"
        )
    if _differs(point, start, z, residual):
        dropouts = _in_training(cell, _DropoutNd)
        where = f" ({dropouts} in training mode)" if dropouts else ""
        _warn(f"f is random between evaluations{where}, so that there is no fixed point to find")


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}, and the gradient does not belong to the returned state. Instead of dropout, use "
        "steadeq.nn.VariationalDropout, which keeps one mask for a whole solve, or pass random values as an input. "
        "Keep batch norm out of the cell or in eval mode: in training mode it also updates its statistics at every "
        "evaluation.",
        RandomnessWarning,
        stacklevel=1,
    )


def _differs(point: Linearization, start: Tensor, z: Tensor, residual: Tensor) -> bool:
    image = point.fz.detach()
    norm = torch.linalg.vector_norm(image, dim=1)
    change = (torch.linalg.vector_norm(image - z, dim=1) - residual * norm).abs()
    # Where the equilibrium is zero, what is left of the start counts, as residuals are relative to that.
    size = torch.maximum(norm, torch.linalg.vector_norm(start, dim=1))
    # Compaction and compiled code round otherwise, by a few eps of the image. The root of eps is far above that and,
    # even for half precision, below what masks do; a twentieth of it, as norms differ less than images do. What
    # exceeds it by mistake costs one evaluation, by the same code on the same batch, and no warning.
    rounding = math.sqrt(point.layout.eps)
    # NaN, which samples have that are not finite, exceeds nothing.
    if not bool((change > 0.05 * rounding * size).any()):
        return False
    difference = torch.linalg.vector_norm(point.evaluate() - image, dim=1)
    return bool((difference > rounding * size).any())


def _in_training(cell: Callable[..., Any], kind: type[nn.Module]) -> str:
    """Name the modules of a kind that are in training mode, if the cell is a module or a method of one."""
    owner = owner_of(cell)
    if owner is None:
        return ""
    return ", ".join(
        f"{name or 'itself'}: {type(module).__name__}"
        for name, module in owner.named_modules()
        if isinstance(module, kind) and module.training
    )
