"""Caching of what a cell computes from its parameters alone, for as long as a solve lasts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kept(Generic[T]):
    """A cached value, and whether it was computed while autograd recorded."""

    value: T
    is_recorded: bool


class AbstractCached(nn.Module, ABC, Generic[T]):
    """A module with a value that it computes from its parameters alone, such as a normalized weight.

    `cached()` returns the value: computed each time by default, and computed once within `cached_parameters`.
    """

    # A list once there is something to keep. Threads may share a module, and each takes away what it has added.
    _kept: Sequence[_Kept[T]] = ()

    @abstractmethod
    def compute(self) -> T:
        """Return the value, computed from the parameters."""

    def cached(self) -> T:
        """Return the value: a cached one if there is one that serves, else a newly computed one."""
        for kept in reversed(self._kept):
            # What was computed without a graph would cut that of an evaluation which is recorded.
            if kept.is_recorded or not torch.is_grad_enabled():
                return kept.value
        return self.compute()

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Compute the value now, with its graph if gradients are on, and cache it until the context ends.

        If there is a cached value that serves already, that one stays.
        """
        is_recorded = torch.is_grad_enabled()
        if any(kept.is_recorded or not is_recorded for kept in self._kept):
            yield
            return
        mine = _Kept(value=self.compute(), is_recorded=is_recorded)
        everything: list[_Kept[T]] = vars(self).setdefault("_kept", [])
        everything.append(mine)
        try:
            yield
        finally:
            everything.remove(mine)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the cache behind when pickled or copied."""
        return {name: value for name, value in vars(self).items() if name != "_kept"}


@contextmanager
def cached_parameters(module: nn.Module, *, recorded: bool = True) -> Iterator[None]:
    """Context manager that caches the values of all `AbstractCached` parts of a module.

    It is to these modules what `torch.nn.utils.parametrize.cached` is to parametrized tensors, for one module instead
    of all: while it is active, each value is computed once, and discarded when the context ends. Unlike there, values
    are computed when the context is entered, under the grad mode of the caller: the evaluations of a solve run without
    gradients, and the one that attaches the graph must reach the parameters.

    `fixed_point` and `DEQ` enter it for their evaluations without gradients; it is for loops of your own.

    Args:
        module: The module whose parts cache their values.
        recorded: Whether values have a graph if gradients are on. If not, they serve evaluations without gradients
            only, and each of the others computes its own.

    Example:
        >>> from steadeq.nn import WeightNormConv2d
        >>> conv = WeightNormConv2d(2, 2, 3)
        >>> with cached_parameters(conv):
        ...     conv.cached() is conv.cached()
        True
        >>> conv.cached() is conv.cached()
        False
    """
    with ExitStack() as stack:
        with torch.set_grad_enabled(recorded and torch.is_grad_enabled()):
            for part in module.modules():
                if isinstance(part, AbstractCached):
                    stack.enter_context(part.keep())
        yield
