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
        f"steadeq's {function.__qualname__} runs outside of compiled graphs, because implicit gradients need products "
        "with the Jacobian; leave out fullgraph=True, or compile the cell alone with DEQ(cell, compile=True); to "
        f"export a model, {_EXPORT}"
    )
    return disabled


def is_exporting() -> bool:
    """Return whether `torch.export` is at work."""
    # PyTorch 2.6 has one flag for exporting and compiling, and compiled code has left its graph before a solve.
    return getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)()


def refuse_tracing() -> None:
    """Refuse to be traced: a solve asks after every evaluation whether to go on, and no graph can hold that.

    Raises:
        RuntimeError: `torch.export`, `torch.onnx.export` or `torch.jit.trace` is at work.
    """
    if is_exporting() or torch._C._get_tracing_state() is not None:
        raise RuntimeError(f"A solve cannot be traced, because the values of tensors decide when it stops; {_EXPORT}.")


_EXPORT = (
    "use steadeq.export.export_model(model, x, solver=Anderson(max_evals=6, tol=0)), whose solves make a fixed number "
    "of evaluations, and save(path) for a .pt2 or .onnx file"
)


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` is at work."""
    return torch._C._are_functorch_transforms_active()


def is_mapped(leaf: Any) -> bool:
    """Return whether a leaf is a tensor that `torch.func.vmap` maps over, within whatever other transforms."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while isinstance(leaf, Tensor) and functorch.is_functorch_wrapped_tensor(leaf):
        if functorch.is_batchedtensor(leaf):
            return True
        leaf = functorch.get_unwrapped(leaf)
    return False


def refuse_vmap(leaves: list[Any]) -> None:
    """Refuse tensors that `torch.func.vmap` maps over.

    Raises:
        RuntimeError: There is one.
    """
    if is_transformed() and any(map(is_mapped, leaves)):
        raise RuntimeError(
            "A solve cannot read the values of a tensor that torch.func.vmap maps over. Make the mapped dimension "
            "part of the batch (dim 0) instead. If f closes over the tensor, pass it to fixed_point after z0 as an "
            "input, or pass the nn.Module that owns it as f."
        )


def refuse_tangents(leaves: list[Any], adjoint: str) -> None:
    """Refuse forward-mode derivatives, which the adjoint of the given name has none of.

    Raises:
        RuntimeError: Some tensor has a tangent.
    """
    if forward_ad._current_level < 0:
        return
    if any(isinstance(leaf, Tensor) and forward_ad.unpack_dual(leaf).tangent is not None for leaf in leaves):
        raise RuntimeError(
            f"fixed_point with adjoint={adjoint}() has no forward-mode derivative; use torch.autograd.grad or "
            "torch.autograd.functional, or adjoint=Unrolled()."
        )
