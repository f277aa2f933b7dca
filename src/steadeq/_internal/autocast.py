"""Autocast around the cell and nowhere else.

The caller's autocast is meant for the cell. The solvers' own arithmetic, inner products above all, must not be rounded
to half precision by it; nor may the backward pass depend on whether it happens to run inside an autocast region. So the
dtype is read where a user calls us, and handed on from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from .trees import Layout, leaves


def state_layout(z: Any, batch_dims: int = 1) -> Layout:
    """Return how a state lies in a matrix, for an f that runs under the autocast that is on now."""
    if batch_dims not in (0, 1) or isinstance(batch_dims, bool):
        raise ValueError(
            f"batch_dims is {batch_dims!r}; it must be 1 (dim 0 is a batch of samples) or 0 (the whole state is one "
            "sample)."
        )
    tensors = [leaf for leaf in leaves(z) if isinstance(leaf, torch.Tensor)]
    dtype = active_autocast(tensors[0].device) if tensors else None
    return Layout(z, autocast_dtype=dtype, batch_dims=batch_dims)


def active_autocast(device: torch.device) -> torch.dtype | None:
    """Return the dtype that autocast computes in on a device, or None where it is off."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def under_autocast(f: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """Return f under the autocast that the layout was made for, wherever it is called."""
    dtype = layout.autocast_dtype
    if dtype is None:
        return f

    def cast(*arguments: Any, **options: Any) -> Any:
        # Weights cast while nothing is recorded must not be reused where a graph is built.
        torch.clear_autocast_cache()
        with torch.autocast(layout.device.type, dtype=dtype):
            return f(*arguments, **options)

    return cast


def without_autocast(layout: Layout) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which arithmetic on the layout's device keeps its precision."""
    if active_autocast(layout.device) is None:
        return contextlib.nullcontext()
    return torch.autocast(layout.device.type, enabled=False)
