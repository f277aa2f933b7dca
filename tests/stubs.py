"""Stand-ins that watch what the solvers do."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from steadeq.state import leaves, map_tensors


class Counted:
    """A map that remembers how it was called: `points` holds the state of every call, `rows` its number of samples."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self._f = f
        self.points: list[Any] = []
        self.rows: list[int] = []

    def __call__(self, z: Any, *inputs: Any) -> Any:
        self.points.append(map_tensors(Tensor.clone, z))
        self.rows.append(leaves(z)[0].shape[0])
        return self._f(z, *inputs)

    @property
    def calls(self) -> int:
        return len(self.rows)
