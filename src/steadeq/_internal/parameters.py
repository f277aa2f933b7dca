"""The tensors that the module of a map has, kept for evaluations when it may have others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .masks import owner_of


class Parameters:
    """The parameters and buffers that the module of a map has now, and evaluations of the map with those or others.

    `torch.func.functional_call` gives a module other tensors until it returns, which is before a backward pass.

    Args:
        f: The map: a module, a method of one, or a function, of which no parameters are known.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self._f, self._owner = f, owner_of(f)
        self._named = self._current()

    def _current(self) -> dict[str, Tensor]:
        owner = self._owner
        return {} if owner is None else {**dict(owner.named_parameters()), **dict(owner.named_buffers())}

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters and buffers."""
        return list(self._named.values())

    def call(self, tensors: Iterable[Tensor], *args: Any, **options: Any) -> Any:
        """Evaluate the map with other tensors instead of its own."""
        if self._owner is None:
            return self._f(*args, **options)
        named = {f"owner.{name}": tensor for name, tensor in zip(self._named, tensors, strict=True)}
        return torch.func.functional_call(_Called(self._f, self._owner), named, args, options)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Evaluate the map with the tensors that it had."""
        current = self._current()
        if all(current.get(name) is tensor for name, tensor in self._named.items()):
            return self._f(*args, **options)
        return self.call(self._named.values(), *args, **options)


class _Called(nn.Module):
    """What is called as a map, which need not be the module but may be one of its methods."""

    def __init__(self, f: Callable[..., Any], owner: nn.Module) -> None:
        super().__init__()
        self.owner = owner
        # In a tuple, as a module is no submodule twice.
        self._f = (f,)

    def forward(self, *args: Any, **options: Any) -> Any:
        """Evaluate the map."""
        return self._f[0](*args, **options)
