"""Stand-ins that watch what the solvers do."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steadeq._internal.trees import leaves, map_tensors
from steadeq.solvers import AbstractSolver, Rule


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


@dataclass(frozen=True, kw_only=True)
class Scripted(AbstractSolver):
    """Visits given points, so that the loop is tested alone: `points` is (evaluations, B, D), the start included.

    What the loop told the rule is left in `log`: the rows of each call, and which of them were rejected.
    """

    points: Tensor
    max_growth: float = math.inf
    num_quiet_windows: int = 1
    max_stalled_windows: float = 3
    log: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def start(self, z: Tensor, eps: float) -> Rule:
        self.log.clear()
        return _ScriptedRule(self)


class _ScriptedRule(Rule):
    def __init__(self, solver: Scripted) -> None:
        self.max_growth, self.num_quiet_windows = solver.max_growth, solver.num_quiet_windows
        self.max_stalled_windows = solver.max_stalled_windows
        self._points, self._log = solver.points, solver.log
        self._rows = torch.arange(solver.points.shape[1])

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None) -> Tensor:
        step = len(self._log)
        torch.testing.assert_close(z, self._points[step, self._rows], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(g, fz - z, rtol=0, atol=0, equal_nan=True)
        marked = [] if rejected is None else self._rows[rejected].tolist()
        self._log.append((self._rows.tolist(), marked))
        return self._points[step + 1, self._rows]

    def select(self, rows: Tensor) -> None:
        self._rows = self._rows[rows]
