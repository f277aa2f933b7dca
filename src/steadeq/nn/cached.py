"""Caching of what a cell computes from its parameters alone, for as long as a solve lasts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

from torch import nn

T = TypeVar("T")


class AbstractCached(nn.Module, ABC, Generic[T]):
    """A module with a value that it computes from its parameters alone, such as a normalized weight.

    `cached()` returns the value: computed each time by default, and computed once within `cached_parameters`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[T] = []

    @abstractmethod
    def compute(self) -> T:
        """Return the value, computed from the parameters."""

    def cached(self) -> T:
        """Return the value: the cached one if the cache is active, else a newly computed one."""
        return self._kept[-1] if self._kept else self.compute()

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Compute the value now, with its graph if gradients are on, and cache it until the context ends."""
        self._kept.append(self.compute())
        try:
            yield
        finally:
            self._kept.pop()

    def __getstate__(self) -> dict[str, object]:
        """Leave the cache behind when pickled or copied."""
        return {**self.__dict__, "_kept": []}


@contextmanager
def cached_parameters(module: nn.Module) -> Iterator[None]:
    """Context manager that caches the values of all `AbstractCached` parts of a module.

    It is to these modules what `torch.nn.utils.parametrize.cached` is to parametrized tensors, for one module instead
    of all: while it is active, each value is computed once, and discarded when the context ends. Unlike there, values
    are computed when the context is entered, under the grad mode of the caller: the evaluations of a solve run without
    gradients, and the one that attaches the graph must reach the parameters.

    Args:
        module: The module whose parts cache their values.

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
        for part in module.modules():
            if isinstance(part, AbstractCached):
                stack.enter_context(part.keep())
        yield
