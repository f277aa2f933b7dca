"""Autocast around the cell and nowhere else.

The caller's autocast is meant for the cell. The solvers' own arithmetic, inner products above all, must not be rounded
to half precision by it; nor may the backward pass depend on whether it happens to run inside an autocast region.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from .state import Layout, active_autocast


def under_autocast(f: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """Return f under the autocast that was on when the layout was made, wherever it is called."""
    dtype = layout.autocast_dtype
    if dtype is None:
        return f

    def cast(*arguments: Any) -> Any:
        # Weights cast while nothing is recorded must not be reused where a graph is built.
        torch.clear_autocast_cache()
        with torch.autocast(layout.device.type, dtype=dtype):
            return f(*arguments)

    return cast


def without_autocast(layout: Layout) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which arithmetic on the layout's device keeps its precision."""
    if active_autocast(layout.device) is None:
        return contextlib.nullcontext()
    return torch.autocast(layout.device.type, enabled=False)
