"""Which transforms a solve can run under.

Some would fail deep inside with an obscure message, others would not be noticed and give a wrong derivative; both are
refused with a sentence that says what to do instead. `torch.compile` around a solve is neither: the solve steps out of
the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

_F = TypeVar("_F", bound=Callable[..., Any])


def outside_of_graphs(function: _F) -> _F:
    """Let a function step out of the graph when `torch.compile` meets it; what is around it is compiled as ever.

    Compiled code has no graph of the evaluations inside of it, without which there are no products with the Jacobian.
    A cell that was compiled by itself stays so.
    """
    disabled: Any = torch.compiler.disable(function)
    # What the compiler says under fullgraph=True.
    disabled._torchdynamo_disable_msg = (
        f"steadeq's {function.__qualname__} runs outside of compiled graphs, as implicit gradients need products with "
        "the Jacobian; leave fullgraph=True away, or compile the cell alone with DEQ(cell, compile=True)"
    )
    return disabled


def refuse_vmap(leaves: list[Any]) -> None:
    """Refuse tensors that `torch.func.vmap` maps over.

    Raises:
        RuntimeError: There is one.
    """
    if not torch._C._are_functorch_transforms_active():
        return
    is_batched = torch._C._functorch.is_batchedtensor  # pyright: ignore[reportAttributeAccessIssue]
    if any(isinstance(leaf, Tensor) and is_batched(leaf) for leaf in leaves):
        raise RuntimeError(
            "fixed_point cannot run under torch.func.vmap, as every sample stops by itself; make the mapped dimension "
            "part of the batch (dim 0) instead."
        )


def refuse_differentiation(leaves: list[Any], adjoint: str) -> None:
    """Refuse differentiation that the adjoint of the given name does not take part in.

    Raises:
        RuntimeError: Transforms of `torch.func` are active, or some tensor has a forward-mode tangent.
    """
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            f"fixed_point with adjoint={adjoint}() cannot run under torch.func.grad, vjp, jacrev or jvp; use "
            "torch.autograd.grad or torch.autograd.functional instead, or adjoint=Unrolled()."
        )
    if forward_ad._current_level < 0:
        return
    if any(isinstance(leaf, Tensor) and forward_ad.unpack_dual(leaf).tangent is not None for leaf in leaves):
        raise RuntimeError(
            f"fixed_point with adjoint={adjoint}() has no forward-mode derivative; use torch.autograd.grad or "
            "torch.autograd.functional, or adjoint=Unrolled()."
        )
