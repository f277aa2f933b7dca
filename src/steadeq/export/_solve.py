"""Solves of a fixed number of evaluations as straight-line tensor code, which tracers can follow.

The loop of `steadeq.solvers` asks the values of tensors how to go on, which no graph can hold. With a fixed budget all
of these questions can be answered by masks: what is here returns what that loop returns for tol=0, to rounding. Small
systems are solved by elimination, written out, as ONNX has no operator for them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._internal.trees import Layout
from ..solvers import AbstractSolver, Anderson, Broyden, Picard
from ..solvers._history import _LEAST_PIVOT, combine, products
from ..solvers._loop import Scale


def solve_in_line(
    f: Callable[..., Any], z0: Any, inputs: tuple[Any, ...], *, solver: AbstractSolver, keep_last: bool = False
) -> Any:
    """Return the state that `solver.max_evals` evaluations of f lead to, each sample's best.

    Args:
        f: The map, called as f(state, *inputs).
        z0: State to start from.
        inputs: What f takes after the state.
        solver: Picard, Anderson or Broyden; its tolerance is not looked at.
        keep_last: Return each sample's last finite state in the place of the best.
    """
    layout = Layout(z0)
    rule = _RULES[type(solver)](solver, layout.dim)
    z = best = layout.pack(z0)
    scale: Scale | None = None
    kept = z.new_full((), math.inf)
    is_done = torch.zeros((), dtype=torch.bool, device=z.device)
    for index in range(solver.max_evals):
        state = layout.unpack(z)
        fz = layout.pack_image(f(state, *inputs), z.shape[0])
        z = layout.pack(state) if layout.rounds else z
        g = fz - z
        scale = scale or Scale(z, fz)
        merit, residual = scale.measure(fz, g).unbind(0)
        is_finite = merit.isfinite() & residual.isfinite() & torch.linalg.vector_norm(fz, dim=1).isfinite()
        is_solved = is_finite & (residual <= 0)
        is_better = is_finite if keep_last else is_solved | (is_finite & (merit < kept))
        is_better = is_better & ~is_done
        rejected = merit > rule.max_growth * kept
        best = torch.where(is_better.unsqueeze(1), z, best)
        kept = torch.where(is_better, merit, kept)
        is_done = is_done | is_solved | ~is_finite
        if index < solver.max_evals - 1:
            z = rule.advance(z, fz, g, rejected)
    return layout.unpack(best)


def can_solve_in_line(solver: AbstractSolver) -> bool:
    """Return whether a solver has a form without questions to the values of tensors."""
    return type(solver) in _RULES


class _Rule(ABC):
    """How a solver picks the next point; see `steadeq.solvers.base.Rule`."""

    max_growth = math.inf

    @abstractmethod
    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor) -> Tensor:
        """Return the next point."""


class _PicardRule(_Rule):
    def __init__(self, solver: Picard, dim: int) -> None:
        self._damping = solver.damping

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor) -> Tensor:
        return fz if self._damping == 1 else z + self._damping * g


class _Window:
    """The last `capacity` columns, from the oldest to the newest, and which of them still count for each sample."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: list[list[Tensor]] = []
        self._is_alive: list[Tensor] = []
        self.num_pushed = 0
        self.table: Tensor | None = None
        """(B, columns, columns) products."""

    def push(self, *columns: Tensor, is_alive: Tensor) -> list[Tensor]:
        """Add a column of each kind; return the (B, columns, D) columns of each kind."""
        self.num_pushed += 1
        self._columns = [*self._columns, list(columns)][-self._capacity :]
        self._is_alive = [*self._is_alive, is_alive][-self._capacity :]
        return [torch.stack(kind, dim=1) for kind in zip(*self._columns, strict=True)]

    @property
    def mask(self) -> Tensor:
        """(B, columns): 1 for columns that count, 0 for those that were forgotten."""
        return torch.stack(self._is_alive, dim=1)

    def forget(self, rows: Tensor) -> None:
        """Have no column so far count for the samples where the mask holds."""
        if self.table is None:
            return
        keep = (~rows).to(self.table)
        self._is_alive = [is_alive * keep for is_alive in self._is_alive]
        self.table = self.table * keep[:, None, None]

    def extend_table(self, row: Tensor, column: Tensor) -> Tensor:
        """Add the products of the newest column; the last entry of row and column is that with itself."""
        size = row.shape[1]
        if size == 1:
            self.table = row.unsqueeze(1)
            return self.table
        assert self.table is not None
        old = self.table[:, 1 - size :, 1 - size :]
        upper = torch.cat([old, column[:, :-1].unsqueeze(2)], dim=2)
        self.table = torch.cat([upper, row.unsqueeze(1)], dim=1)
        return self.table

    @property
    def slots(self) -> list[int]:
        """Where the columns are in the order in which the ring of `steadeq.solvers` holds them."""
        size = len(self._columns)
        return [(slot - self.num_pushed) % size if size == self._capacity else slot for slot in range(size)]


class _AndersonRule(_Rule):
    max_growth = 100.0

    def __init__(self, solver: Anderson, dim: int) -> None:
        self._capacity = min(solver.memory - 1, solver.max_evals - 2, dim)
        self._mixing, self._ridge = solver.mixing, solver.ridge
        self._window = _Window(self._capacity)
        self._last: tuple[Tensor, Tensor] | None = None
        self._was_plain: Tensor | None = None

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor) -> Tensor:
        if self._last is None or self._capacity < 1:
            self._last = (fz, g)
            return fz if self._mixing == 1 else fz - (1 - self._mixing) * g
        fz_last, g_last = self._last
        # A rejected sample goes back to its last evaluation, once, and forgets its history.
        if self._was_plain is not None:
            rejected = rejected & ~self._was_plain
        self._was_plain = rejected
        fz, g = (torch.where(rejected.unsqueeze(1), old, new) for old, new in ((fz_last, fz), (g_last, g)))
        self._last = (fz, g)
        window = self._window
        window.forget(rejected)
        newest = g - g_last
        dg, df = window.push(newest, fz - fz_last, is_alive=torch.ones_like(g[:, 0]))
        row = products(dg, newest) * window.mask
        gram = window.extend_table(row, row)
        if self._ridge:
            gram = gram * (1 + self._ridge * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device))
        weights = _solve_gram(gram, products(dg, g) * window.mask, window.slots)
        following = combine(fz, weights, df, scale=-1.0)
        if self._mixing == 1:
            return following
        return following - (1 - self._mixing) * combine(g, weights, dg, scale=-1.0)


class _BroydenRule(_Rule):
    def __init__(self, solver: Broyden, dim: int) -> None:
        largest = solver.max_evals - 1
        self._capacity = largest if solver.memory is None else min(solver.memory, largest)
        self._window = _Window(self._capacity)
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        self._right: Tensor | None = None

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor) -> Tensor:
        if self._last is None or self._capacity < 1:
            self._last = (z, fz, g)
            return fz
        z_last, fz_last, g_last = self._last
        self._last = (z, fz, g)
        window, newest = self._window, z - z_last
        s, df = window.push(newest, fz - fz_last, is_alive=torch.ones_like(g[:, 0]))
        size, mask = s.shape[1], window.mask
        right = products(s, g) * mask
        corner = torch.linalg.vecdot(newest, g - g_last).unsqueeze(1)
        row = torch.cat([(products(df, newest) * mask)[:, :-1], corner], dim=1)
        change = (
            corner[:, :0] if self._right is None else right[:, :-1] - self._right[:, self._right.shape[1] + 1 - size :]
        )
        table = window.extend_table(row, torch.cat([change, corner], dim=1))
        tiny = torch.finfo(z.dtype).tiny * torch.eye(size, dtype=z.dtype, device=z.device)
        weights = _solve_general(table + tiny, right)
        parts = weights.abs() * torch.linalg.vector_norm(df, dim=2)
        is_large = parts.amax(dim=1) > 1e8 * torch.linalg.vector_norm(g, dim=1)
        is_lost = is_large & (weights.abs().amax(dim=1) > 1e8)
        window.forget(is_lost)
        self._right = torch.where(is_lost.unsqueeze(1), 0, right)
        return combine(fz, torch.where(is_lost.unsqueeze(1), 0, weights), df, scale=-1.0)


_RULES: dict[type[AbstractSolver], Callable[[Any, int], _Rule]] = {
    Picard: _PicardRule,
    Anderson: _AndersonRule,
    Broyden: _BroydenRule,
}


def _solve_gram(gram: Tensor, right: Tensor, slots: Sequence[int]) -> Tensor:
    """Solve systems of inner products without columns that depend on newer ones; see `solvers._history.solve_gram`."""
    squares = gram.diagonal(dim1=1, dim2=2)
    is_positive = squares > 0
    scales = torch.where(is_positive, torch.where(is_positive, squares, 1).rsqrt(), 0)
    cosines = gram * scales.unsqueeze(1) * scales.unsqueeze(2)
    table = torch.cat([cosines, (right * scales).unsqueeze(2)], dim=2)
    weights, is_regular = _eliminate(table, slots)
    if len(slots) > 1:
        # Only those that the first order finds dependent are asked for in the order of age.
        chosen, _ = _eliminate(table, range(len(slots) - 1, -1, -1))
        weights = torch.where(is_regular.unsqueeze(1), weights, chosen)
    weights = weights * scales
    is_finite = table.sum(dim=(1, 2)).isfinite() & weights.sum(dim=1).isfinite()
    return torch.where(is_finite.unsqueeze(1), weights, 0)


def _eliminate(table: Tensor, order: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Solve (B, m, m + 1) symmetric systems with a unit diagonal, the right-hand side last, without pivoting.

    Returns:
        The (B, m) solution, zero in columns that depend on those before them in the order; and whether there are none.
    """
    size, least = table.shape[1], _LEAST_PIVOT * torch.finfo(table.dtype).eps
    eye = torch.eye(size, dtype=table.dtype, device=table.device)
    are_kept: dict[int, Tensor] = {}
    for column in order:
        row = table[:, column]
        pivot = row[:, column : column + 1]
        is_kept = pivot > least
        row = row * torch.where(is_kept, pivot.reciprocal(), 0)
        # As pivots are at most 1, this leaves in the row of the column what is to be there, to full precision.
        table = table - (table[:, :, column] - eye[column]).unsqueeze(2) * row.unsqueeze(1)
        are_kept[column] = is_kept
    mask = torch.cat([are_kept[column] for column in range(size)], dim=1)
    return torch.where(mask, table[:, :, size], 0), mask.all(dim=1)


def _solve_general(system: Tensor, right: Tensor) -> Tensor:
    """Solve (B, m, m) systems for (B, m), with the largest entry of each column as its pivot; zero where not finite."""
    size = system.shape[1]
    table = torch.cat([system, right.unsqueeze(2)], dim=2)
    rows = torch.arange(size, device=table.device)
    is_free = torch.ones_like(right, dtype=torch.bool)
    picked = []
    for column in range(size):
        entries = table[:, :, column]
        largest = torch.where(is_free, entries.abs(), -1.0).argmax(dim=1, keepdim=True)
        is_pivot = rows == largest
        pivot_row = torch.where(is_pivot.unsqueeze(2), table, 0).sum(dim=1)
        pivot_row = pivot_row / pivot_row[:, column].unsqueeze(1)
        table = torch.where(
            is_pivot.unsqueeze(2), pivot_row.unsqueeze(1), table - entries.unsqueeze(2) * pivot_row.unsqueeze(1)
        )
        is_free = is_free & ~is_pivot
        picked.append(is_pivot)
    solution = torch.stack([torch.where(is_pivot, table[:, :, size], 0).sum(dim=1) for is_pivot in picked], dim=1)
    return torch.where(solution.isfinite().all(dim=1, keepdim=True), solution, 0)
