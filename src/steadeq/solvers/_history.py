"""Windows of past vectors, and their products with others.

Columns lie as (B, columns, D), so that every vector is contiguous. Products are written as (B, 1, D) @ (B, D, columns):
on the CPU the other order, (B, columns, D) @ (B, D, 1), is an order of magnitude slower.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class History:
    """The last `capacity` vectors pushed, in a ring that is written in place.

    While autograd records, the ring is replaced by a list, as vectors that backward needs must not be overwritten. It
    may begin to record at any time, and records from then on.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_pushed = 0
        self._buffer: Tensor | None = None
        self._slots: tuple[Tensor, ...] = ()
        self._list: list[Tensor] = []

    def __len__(self) -> int:
        return min(self._num_pushed, self._capacity)

    @property
    def slot(self) -> int:
        """Slot in which the newest vector lies."""
        return (self._num_pushed - 1) % self._capacity

    @property
    def columns(self) -> Tensor:
        """The (B, columns, D) window, in the order of slots."""
        if self._buffer is None:
            return torch.stack(self._list, dim=1)
        return self._buffer if self._num_pushed >= self._capacity else self._buffer.narrow(1, 0, self._num_pushed)

    def push_difference(self, new: Tensor, old: Tensor) -> Tensor:
        """Add new - old, dropping the oldest vector when full; return the vector added."""
        self._num_pushed += 1
        if torch.is_grad_enabled():
            if self._buffer is not None:
                self._list = list(self._buffer[:, : min(self._num_pushed - 1, self._capacity)].clone().unbind(1))
                self._buffer, self._slots = None, ()
            difference = new - old
            self._list[self.slot : self.slot + 1] = [difference]
            return difference
        if self._buffer is None:
            self._buffer = new.new_empty(new.shape[0], self._capacity, new.shape[1])
            self._slots = self._buffer.unbind(1)
        return torch.sub(new, old, out=self._slots[self.slot])

    def select(self, rows: Tensor) -> None:
        """Keep the given rows."""
        if self._buffer is not None:
            self._buffer = self._buffer.index_select(0, rows)
            self._slots = self._buffer.unbind(1)
        self._list = [vector.index_select(0, rows) for vector in self._list]


class Table:
    """A (B, columns, columns) table of inner products that follows the slots of a history.

    A row can be cleared: what its history holds until then counts as zero. The vectors themselves stay, which saves
    writing over all of them.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: Tensor | None = None
        self._is_valid: Tensor | None = None

    def write(self, slot: int, size: int, *, row: Tensor, column: Tensor) -> Tensor:
        """Set the products of one slot with all others; return the (B, size, size) table."""
        if self._values is None:
            self._values = row.new_zeros(row.shape[0], self._capacity, self._capacity)
        if torch.is_grad_enabled():
            self._values = self._values.clone()
        values = self._values if size == self._capacity else self._values[:, :size, :size]
        values.select(2, slot).copy_(self.valid(column))
        values.select(1, slot).copy_(self.valid(row))
        return values

    def renew(self, slot: int) -> None:
        """Note that a slot holds a new vector."""
        if self._is_valid is not None:
            self._is_valid[:, slot] = True

    def valid(self, products: Tensor) -> Tensor:
        """Return (B, size) products with the vectors in the slots, zero for those of rows that were cleared since."""
        return products if self._is_valid is None else torch.where(self._is_valid[:, : products.shape[1]], products, 0)

    def clear(self, rows: Tensor) -> None:
        """Let the history of the rows where the mask holds count as zero."""
        if self._values is None:
            return
        self._values = torch.where(rows[:, None, None], 0, self._values)
        is_kept = ~rows[:, None]
        self._is_valid = is_kept.repeat(1, self._capacity) if self._is_valid is None else self._is_valid & is_kept

    def select(self, rows: Tensor) -> None:
        """Keep the given rows."""
        if self._values is not None:
            self._values = self._values.index_select(0, rows)
        if self._is_valid is not None:
            self._is_valid = self._is_valid.index_select(0, rows)


class LastEvaluation:
    """The evaluation before the newest, to which a rejected row goes back.

    With the old evaluation in place of the new one all differences vanish, so that an accelerated step becomes a plain
    one. A row whose last step was already plain has nothing to go back to and is accepted as it is.
    """

    def __init__(self) -> None:
        self.matrices: tuple[Tensor, ...] | None = None
        self._was_plain: Tensor | None = None

    def accept(self) -> None:
        """Note that no row was rejected, so that all go on to accelerated steps."""
        self._was_plain = None

    def rollback(self, new: tuple[Tensor, ...], rejected: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the evaluation with rejected rows replaced, and which rows were."""
        assert self.matrices is not None
        if self._was_plain is not None:
            rejected = rejected & ~self._was_plain
        self._was_plain = rejected
        pairs = zip(self.matrices, new, strict=True)
        return tuple(torch.where(rejected[:, None], old, newest) for old, newest in pairs), rejected

    def select(self, rows: Tensor) -> None:
        """Keep the given rows."""
        if self.matrices is not None:
            self.matrices = tuple(matrix.index_select(0, rows) for matrix in self.matrices)
        if self._was_plain is not None:
            self._was_plain = self._was_plain.index_select(0, rows)


def look(number: Tensor) -> Any:
    """Return a number of a solve: on the CPU the host reads its own memory, elsewhere it waits for the device."""
    return number.tolist()


def products(columns: Tensor, vector: Tensor) -> Tensor:
    """Return the (B, columns) inner products of each column with a (B, D) vector."""
    return torch.bmm(vector.unsqueeze(1), columns.mT).squeeze(1)


def weighted_sum(weights: Tensor, columns: Tensor) -> Tensor:
    """Return sum_j weights_j columns_j for (B, columns) and (B, columns, D)."""
    return torch.bmm(weights.unsqueeze(1), columns).squeeze(1)


def combine(base: Tensor, weights: Tensor, columns: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return base + scale * sum_j weights_j columns_j for (B, D), (B, columns) and (B, columns, D)."""
    return torch.baddbmm(base.unsqueeze(1), weights.unsqueeze(1), columns, alpha=scale).squeeze(1)


def solve_small(table: Tensor, right: Tensor, *, may_look: bool = True) -> Tensor:
    """Solve (B, m, m) systems for (B, m) right-hand sides; a row without a finite solution becomes zero.

    Args:
        table: The matrices.
        right: The right-hand sides.
        may_look: Whether the host may look at the solution, which saves work if it is finite.
    """
    weights = torch.linalg.solve_ex(table, right.unsqueeze(2))[0].squeeze(2)
    if may_look and math.isfinite(look(weights.sum())):
        return weights
    # A row is kept or dropped as a whole.
    return torch.where(weights.isfinite().all(dim=1, keepdim=True), weights, 0)


def solve_gram(gram: Tensor, right: Tensor, newest: int, *, may_look: bool = True) -> Tensor:
    """Solve (B, m, m) systems of inner products of columns, leaving out columns that depend on newer ones.

    A column counts as dependent where what is left of it, once newer columns are projected out, is close to what
    rounding makes of the inner products, or where it is zero. Its weight is zero and has no derivative, as is every
    weight of a row that is not finite.

    Args:
        gram: Inner products of the columns with each other, in the order of slots.
        right: (B, m) inner products with the right-hand side.
        newest: The slot of the newest column.
        may_look: Whether the host may look at the pivots, which saves work if no column is dependent.
    """
    least = LEAST_PIVOT * torch.finfo(gram.dtype).eps
    factor, info = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal(dim1=1, dim2=2).square() / gram.diagonal(dim1=1, dim2=2)
    # Where a factorization failed, info is at least 1, and pivots are at most 1.
    lowest = pivots.amin(dim=1) - info
    if may_look and look(lowest.amin()) > least:
        return torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
    # Each row goes its own way, so that none depends on its neighbors; no garbage of failed rows enters a graph.
    is_regular = (lowest > least).unsqueeze(1)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    factor, _ = torch.linalg.cholesky_ex(torch.where(is_regular.unsqueeze(2), gram, eye))
    regular = torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
    dependent = _solve_without_dependent(gram, right, newest, least, may_look=may_look)
    return torch.where(is_regular, regular, dependent)


def _solve_without_dependent(gram: Tensor, right: Tensor, newest: int, least: float, *, may_look: bool) -> Tensor:
    size = gram.shape[1]
    squares = gram.diagonal(dim1=1, dim2=2)
    # Divisions are by one where they are not used, as otherwise their derivatives would be NaN.
    scales = torch.where(squares > 0, torch.where(squares > 0, squares, 1).rsqrt(), 0)
    cosines = gram * scales.unsqueeze(1) * scales.unsqueeze(2)
    rest, kept = cosines, torch.zeros_like(scales)
    for age in range(size):
        slot = (newest - age) % size
        pivot = rest[:, slot, slot]
        is_kept = pivot > least
        kept[:, slot] = is_kept.to(kept)
        inverse = is_kept / torch.where(is_kept, pivot, 1)
        rest = rest - rest[:, :, slot, None] * rest[:, None, slot] * inverse[:, None, None]
    system = cosines * kept.unsqueeze(1) * kept.unsqueeze(2) + torch.diag_embed(1 - kept)
    return solve_small(system, right * scales * kept, may_look=may_look) * scales


LEAST_PIVOT = 100.0
"""Squared sine of a column's angle to newer ones, in epsilons, below which the column is left out."""


class Diagonals:
    """Constant m x m matrices a + b I, of every size up to a capacity."""

    def __init__(self, everywhere: float, diagonal: float, capacity: int, like: Tensor) -> None:
        self._capacity = max(capacity, 0)
        self._matrix = like.new_full((self._capacity, self._capacity), everywhere)
        self._matrix.fill_diagonal_(everywhere + diagonal)

    def __getitem__(self, size: int) -> Tensor:
        return self._matrix if size == self._capacity else self._matrix[:size, :size]
