"""Whether the samples of a batch are independent: that no row of f(z) depends on another row of z.

Solves take that for granted: each sample has steps, a stop and a linear system of its own. Where rows see each other,
as nodes of a graph or positions of a sequence along dim 0 do, gradients would be wrong with a clean status. A probe
tells: it costs one product with the Jacobian, or one evaluation, the first time that a cell is seen.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from .masks import MaskedMap, owner_of

COUPLED = (
    "The samples of a batch (dim 0) must not depend on each other. If dim 0 of the state holds nodes, atoms or time "
    "steps that see each other, pass batch_dims=0, which solves the whole state as one sample; if f closes over a "
    "tensor of the whole batch, pass that after z0 as an input."
)

_independent: weakref.WeakSet[Any] = weakref.WeakSet()
"""Cells whose samples were found to be independent."""


def identity_of(cell: Any) -> Any:
    """Return what a cell is known by: its module, or its code, as functions are often made anew for each call."""
    owner = owner_of(cell)
    if owner is not None:
        return owner
    while isinstance(cell, (functools.partial, MaskedMap)):
        cell = cell.func if isinstance(cell, functools.partial) else cell.f
    return getattr(getattr(cell, "__func__", cell), "__code__", cell)


def is_known(cell: Callable[..., Any]) -> bool:
    """Return whether a cell need not be probed: it was before, or it is warned of as it has batch norm."""
    identity = identity_of(cell)
    try:
        if identity in _independent:
            return True
        owner = owner_of(cell)
        if owner is not None and any(isinstance(part, _BatchNorm) and part.training for part in owner.modules()):
            return True
        # What cannot be told again is not probed at every solve.
        weakref.ref(identity)
        hash(identity)
    except TypeError:
        return True
    return False


def _note(cell: Callable[..., Any]) -> None:
    _independent.add(identity_of(cell))


@torch.no_grad()
def check_products(cell: Callable[..., Any], vjp: Callable[[Tensor], Tensor], like: Tensor) -> None:
    """Refuse a cell whose samples see each other, told by one product: of cotangents on half of the rows.

    Args:
        cell: The map as the caller has it.
        vjp: Returns Jᵀu for a (B, D) matrix u.
        like: (B, D) matrix whose size, dtype and device are taken.

    Raises:
        ValueError: The product is not zero on the other half.
    """
    if len(like) < 2 or is_known(cell):
        return
    generator = torch.Generator("cpu").manual_seed(len(like))
    order = torch.randperm(len(like), generator=generator, device="cpu")
    probed, others = (part.to(like.device) for part in (order[: len(like) // 2], order[len(like) // 2 :]))
    u = torch.zeros_like(like)
    signs = 2 * torch.randint(2, (len(probed), like.shape[1]), generator=generator, device="cpu") - 1
    u[probed] = signs.to(like)
    product = vjp(u).abs().amax(dim=1)
    across, along = product[others].amax(), product[probed].amax()
    if bool(across > 1e3 * torch.finfo(like.dtype).eps * along):
        raise ValueError(f"A row of f(z) depends on other rows of z. {COUPLED}")
    _note(cell)


@torch.no_grad()
def check_residuals(cell: Callable[..., Any], evaluate: Callable[[], Tensor], expected: Tensor) -> None:
    """Refuse a cell for which a solve that samples left ends at states that are none of the whole batch.

    Args:
        cell: The map as the caller has it.
        evaluate: Returns the (B,) relative residuals of the states that were found, by one evaluation of all of them.
        expected: What the solve says they are.

    Raises:
        ValueError: They are larger, and not because f is random.
    """
    if is_known(cell):
        return
    found = evaluate()
    # Kernels round otherwise for other batch sizes, by a few eps of what they add up; the root of eps is far above.
    limit = 2 * expected + torch.finfo(expected.dtype).eps ** 0.5
    if bool((found > limit).any()):
        if not bool(((evaluate() - found).abs() > limit).any()):
            raise ValueError(
                "After finished samples had left the batch, f mapped the remaining samples differently than before. "
                f"{COUPLED}"
            )
    else:
        _note(cell)
