"""Work that is the same for every evaluation of a cell within a solve, done once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

from torch import nn

T = TypeVar("T")


class AbstractShared(nn.Module, ABC, Generic[T]):
    """A module with something to compute from its parameters alone, such as a normalized weight.

    `shared()` returns it: computed anew, or once within `computed_once`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[T] = []

    @abstractmethod
    def compute(self) -> T:
        """Return what depends on parameters alone."""

    def shared(self) -> T:
        """Return it."""
        return self._kept[-1] if self._kept else self.compute()

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Compute it now, with its graph if gradients are on, and return the same until the context ends."""
        self._kept.append(self.compute())
        try:
            yield
        finally:
            self._kept.pop()

    def __getstate__(self) -> dict[str, object]:
        """Leave what is kept behind when pickled or copied."""
        return {**self.__dict__, "_kept": []}


@contextmanager
def computed_once(module: nn.Module) -> Iterator[None]:
    """Let all `AbstractShared` parts of a module compute their shared things once, for as long as the context lasts.

    Meant for a solve: its evaluations run without gradients, but what they share is computed before them, under the
    grad mode of the caller, so that the one evaluation that attaches the graph reaches the parameters.

    Example:
        >>> from steadeq.nn import WeightNormConv2d
        >>> conv = WeightNormConv2d(2, 2, 3)
        >>> with computed_once(conv):
        ...     conv.shared() is conv.shared()
        True
        >>> conv.shared() is conv.shared()
        False
    """
    with ExitStack() as stack:
        for part in module.modules():
            if isinstance(part, AbstractShared):
                stack.enter_context(part.keep())
        yield
