"""Windows of past vectors, the inner products between them, and the small systems that these make.

A window is a (B, columns, D) tensor, so that every vector is contiguous. Products are written as
(B, 1, D) @ (B, D, columns): on the CPU the other order, (B, columns, D) @ (B, D, 1), is an order of magnitude slower.

Evaluation k brings the difference k - 1, which goes to slot (k - 2) modulo the capacity. Slots are integers, and
windows are seen as far as they are filled, but in compiled code, which serves every step: there a slot is a tensor, and
columns of zeros stand for what is not there yet.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._internal.unsupported import is_exporting
from .base import Evaluation


class Slot:
    """Where the newest difference goes, and how much of a window is filled.

    Args:
        at: The evaluation, which is not the first.
        capacity: The most columns of the window.
    """

    def __init__(self, at: Evaluation, capacity: int) -> None:
        self.capacity = capacity
        self.index: int | Tensor = (at.number - 2) % capacity
        self.size = min(at.number - 1, capacity) if isinstance(at.number, int) else capacity
        """Number of columns to look at."""
        self._prefix = at.prefix

    def products(self, window: Tensor, vector: Tensor) -> Tensor:
        """Return the (B, size) inner products of filled columns with a vector; of prefixes, in a causal solve."""
        found = products(self.filled(window), vector)
        return found if self._prefix is None else self._prefix.sum(found)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the (B,) inner products of two vectors; of prefixes, in a causal solve."""
        found = torch.linalg.vecdot(a, b)
        return found if self._prefix is None else self._prefix.sum(found)

    def filled(self, window: Tensor) -> Tensor:
        """Return the columns of a window that are filled."""
        return window if window.shape[1] == self.size else window.narrow(1, 0, self.size)

    def push(self, window: Tensor, new: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        """Write new - old over the oldest column; return the window and the difference."""
        if isinstance(self.index, Tensor):
            difference = new - old
            place = self.index.reshape(1)
            if torch.is_grad_enabled():
                return window.index_copy(1, place, difference.unsqueeze(1)), difference
            return window.index_copy_(1, place, difference.unsqueeze(1)), difference
        if self.index == window.shape[1]:
            difference = new - old
            return torch.cat([window, difference.unsqueeze(1)], dim=1), difference
        if torch.is_grad_enabled() or is_exporting():
            # What a backward pass needs must not be overwritten.
            difference = new - old
            return window.select_scatter(difference, 1, self.index), difference
        return window, torch.sub(new, old, out=window.select(1, self.index))

    def write(self, table: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Set row and column of the newest vector in a (B, capacity, capacity) table; the row wins at their corner."""
        if isinstance(self.index, Tensor):
            is_new = torch.arange(self.capacity, device=table.device) == self.index
            table = torch.where(is_new, column.unsqueeze(2), table)
            return torch.where(is_new.unsqueeze(1), row.unsqueeze(1), table)
        if torch.is_grad_enabled() or is_exporting():
            table = table.clone()
        part = self.square(table)
        part.select(2, self.index).copy_(column)
        part.select(1, self.index).copy_(row)
        return table

    def square(self, table: Tensor) -> Tensor:
        """Return the part of a table that belongs to filled columns."""
        return table if self.size == self.capacity else table[:, : self.size, : self.size]

    def set(self, vector: Tensor, value: Tensor) -> Tensor:
        """Return a (B, columns) vector with the entry of the newest column set."""
        if isinstance(self.index, Tensor):
            is_new = torch.arange(vector.shape[1], device=vector.device) == self.index
            return torch.where(is_new, value.unsqueeze(1), vector)
        return vector.select_scatter(value, 1, self.index)

    def renew(self, valid: Tensor | None) -> Tensor | None:
        """Return which columns of each row count, once the newest has been written."""
        if valid is None:
            return None
        return self.set(valid, torch.ones_like(valid[:, 0]))


def new_window(z: Tensor, capacity: int, *, may_ask: bool) -> Tensor:
    """Return an empty window: room for all columns, or none where it grows with each, as while autograd records."""
    if torch.is_grad_enabled() or is_exporting():
        return z.new_empty(z.shape[0], 0, z.shape[1])
    shape = z.shape[0], max(capacity, 0), z.shape[1]
    return z.new_empty(shape) if may_ask else z.new_zeros(shape)


def only(products: Tensor, valid: Tensor | None) -> Tensor:
    """Return (B, size) products with columns, zero for those that do not count."""
    return products if valid is None else torch.where(valid[:, : products.shape[1]], products, 0)


def forget(rows: Tensor, table: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return table and valid columns after the rows where a mask holds have lost their history.

    The vectors themselves stay, which saves writing over all of them.
    """
    is_kept = ~rows[:, None]
    valid = is_kept.repeat(1, table.shape[1]) if valid is None else valid & is_kept
    return torch.where(rows[:, None, None], 0, table), valid


def go_back(
    rejected: Tensor, was_plain: Tensor | None, *pairs: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Put rejected rows back to the evaluation before; return which rows that is done for, and the matrices.

    With the old evaluation in place of the new one all differences vanish, so that an accelerated step becomes a plain
    one. A row whose last step was already plain has nothing to go back to and is accepted as it is.

    Args:
        rejected: (B,) rows that are rejected.
        was_plain: (B,) rows whose last step was plain because of that, or None for none.
        *pairs: Old and new matrices.
    """
    goes_back = rejected if was_plain is None else rejected & ~was_plain
    return goes_back, tuple(torch.where(goes_back[:, None], old, new) for old, new in pairs)


def products(window: Tensor, vector: Tensor) -> Tensor:
    """Return the (B, columns) inner products of (B, columns, D) columns with a (B, D) vector."""
    return torch.bmm(vector.unsqueeze(1), window.mT).squeeze(1)


def weighted_sum(weights: Tensor, window: Tensor) -> Tensor:
    """Return the (B, D) sum of columns with (B, columns) weights."""
    return torch.bmm(weights.unsqueeze(1), window).squeeze(1)


def combine(base: Tensor, weights: Tensor, window: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return base + scale * sum_j weights_j columns_j."""
    return torch.baddbmm(base.unsqueeze(1), weights.unsqueeze(1), window, alpha=scale).squeeze(1)


def look(number: Tensor) -> Any:
    """Return a number of a solve: on the CPU the host reads its own memory, elsewhere it waits for the device."""
    return number.tolist()


def solve_small(table: Tensor, right: Tensor, *, may_ask: bool = True) -> Tensor:
    """Solve (B, m, m) systems for (B, m) right-hand sides; a row without a finite solution becomes zero.

    Args:
        table: The matrices.
        right: The right-hand sides.
        may_ask: Whether the host may look at the solution, which saves work if it is finite.
    """
    if is_exporting():
        weights = _eliminate(table, right, range(table.shape[1]), least=0.0)
    else:
        weights = torch.linalg.solve_ex(table, right.unsqueeze(2))[0].squeeze(2)
    if may_ask and math.isfinite(look(weights.sum())):
        return weights
    # A row is kept or dropped as a whole.
    return torch.where(weights.isfinite().all(dim=1, keepdim=True), weights, 0)


LEAST_PIVOT = 100.0
"""Squared sine of a column's angle to newer ones, in epsilons, below which the column is left out."""


def solve_gram(gram: Tensor, right: Tensor, newest: int | Tensor, floor: Tensor, *, may_ask: bool) -> Tensor:
    """Solve (B, m, m) systems of inner products of columns, leaving out those that tell nothing.

    That is a column that depends on newer ones, as what is left of it, once these are projected out, is close to what
    rounding makes of the inner products; and one that is no longer than rounding itself. Its weight is zero and has no
    derivative, as is every weight of a row that is not finite.

    Args:
        gram: Inner products of the columns with each other, in the order of slots.
        right: (B, m) inner products with the right-hand side.
        newest: The slot of the newest column.
        floor: (B, 1) squared length up to which a column is rounding.
        may_ask: Whether the host may look at the pivots, which saves work if no column is left out.
    """
    least = LEAST_PIVOT * torch.finfo(gram.dtype).eps
    if torch.compiler.is_compiling():
        return _solve_without_dependent(gram, right, newest, floor, least)
    factor, info = torch.linalg.cholesky_ex(gram)
    squares, diagonal = factor.diagonal(dim1=1, dim2=2).square(), gram.diagonal(dim1=1, dim2=2)
    # Of a column at the floor the quotient is `least` at most. Where a factorization failed, info is at least 1, and
    # quotients are at most 1.
    lowest = (squares / torch.add(diagonal, floor, alpha=1 / least)).amin(dim=1) - info
    if may_ask and look(lowest.amin()) > least:
        return torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
    # Each row goes its own way, so that none depends on its neighbors; no garbage of failed rows enters a graph.
    is_regular = (((squares / diagonal).amin(dim=1) - info > least) & (diagonal > floor).all(dim=1)).unsqueeze(1)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    factor, _ = torch.linalg.cholesky_ex(torch.where(is_regular.unsqueeze(2), gram, eye))
    regular = torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
    return torch.where(is_regular, regular, _solve_without_dependent(gram, right, newest, floor, least))


def _solve_without_dependent(gram: Tensor, right: Tensor, newest: int | Tensor, floor: Tensor, least: float) -> Tensor:
    """Solve systems by elimination from the newest column to the oldest, of which dependent ones are left out."""
    size = gram.shape[1]
    squares = gram.diagonal(dim1=1, dim2=2)
    # Divisions are by one where they are not used, as otherwise their derivatives would be NaN.
    is_there = squares > floor
    scales = torch.where(is_there, torch.where(is_there, squares, 1).rsqrt(), 0)
    cosines = gram * scales.unsqueeze(1) * scales.unsqueeze(2)
    if isinstance(newest, Tensor):
        # The order of the slots is not known when this is traced, so the columns are sorted by age.
        order = (newest - torch.arange(size, device=gram.device)) % size
        cosines = cosines.index_select(1, order).index_select(2, order)
        weights = _eliminate(cosines, (right * scales).index_select(1, order), range(size), least=least)
        weights = torch.zeros_like(weights).index_copy(1, order, weights)
    else:
        order = [(newest - age) % size for age in range(size)]
        weights = _eliminate(cosines, right * scales, order, least=least)
    weights = weights * scales
    return torch.where(weights.isfinite().all(dim=1, keepdim=True), weights, 0)


def _eliminate(table: Tensor, right: Tensor, order: Any, *, least: float) -> Tensor:
    """Solve (B, m, m) systems by the elimination of Gauss and Jordan in a given order, without a choice of pivots.

    A column whose pivot is not above `least` in size gets the weight zero. It is made of operations that every compiler
    and ONNX have.
    """
    size = table.shape[1]
    system = torch.cat([table, right.unsqueeze(2)], dim=2)
    eye = torch.eye(size, dtype=table.dtype, device=table.device)
    kept: dict[int, Tensor] = {}
    for k in order:
        pivot = system[:, k, k]
        kept[k] = pivot.abs() > least
        inverse = torch.where(kept[k], torch.where(kept[k], pivot, 1).reciprocal(), 0)
        # Row k is divided by its pivot; of all others, what they have in column k is taken off.
        factors = (system[:, :, k] - eye[k]) * inverse.unsqueeze(1)
        system = system - factors.unsqueeze(2) * system[:, k].unsqueeze(1)
    return torch.where(torch.stack([kept[k] for k in range(size)], dim=1), system[:, :, size], 0)
