"""Who is told about solves, without a place in the model that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..equilibrium import Equilibrium

_E = TypeVar("_E", bound=Equilibrium)
_watchers: list[Callable[[Equilibrium], None]] = []


@contextmanager
def watch_solves(watcher: Callable[[Equilibrium], None]) -> Iterator[None]:
    """Call a function with every equilibrium that is solved for with gradients on, in any thread."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def announce(eq: _E) -> _E:
    """Tell the watchers of an equilibrium, and return it."""
    if _watchers and torch.is_grad_enabled():
        for watcher in tuple(_watchers):
            watcher(eq)
    return eq
