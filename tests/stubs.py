"""Stand-ins that watch what the solvers do."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steadeq._internal.trees import leaves, map_tensors
from steadeq.solvers import AbstractSolver, Evaluation


def replay(solver: AbstractSolver, z: Tensor, fz: Tensor, rejected: list[Tensor | None]) -> tuple[Any, list[Tensor]]:
    """Hand (evaluations, rows, D) evaluations to a method; return its last state, and its answers."""
    state, answers = solver.init(z[0], eps=1e-16, may_sync=True), []
    for k, mask in enumerate(rejected):
        norm = torch.linalg.vector_norm(fz[k], dim=1)
        at = Evaluation(z[k], fz[k], fz[k] - z[k], norm, mask, k + 1, solver.max_evals - k - 1, solver.tol, True)
        state, following = solver.step(state, at)
        answers.append(following)
    return state, answers


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
    quiet_windows: int = 1
    max_stalled_windows: float = 3
    log: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def num_quiet_windows(self, dim: int) -> int:
        return self.quiet_windows

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> Tensor:
        self.log.clear()
        return torch.arange(self.points.shape[1])

    def step(self, state: Tensor, at: Evaluation) -> tuple[Tensor, Tensor]:
        step, rows = len(self.log), state
        torch.testing.assert_close(at.z, self.points[step, rows], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(at.g, at.fz - at.z, rtol=0, atol=0, equal_nan=True)
        marked = [] if at.rejected is None else rows[at.rejected].tolist()
        self.log.append((rows.tolist(), marked))
        return rows, self.points[step + 1, rows]
