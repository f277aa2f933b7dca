"""Windows of past vectors, the inner products between them, and the small systems that these make.

A window is a (B, columns, D) tensor, so that every vector is contiguous. Products are written as
(B, 1, D) @ (B, D, columns): on the CPU the other order, (B, columns, D) @ (B, D, 1), is an order of magnitude slower.

Evaluation k brings the difference k - 1, which goes to slot (k - 2) modulo the capacity. Slots are integers, and
windows are seen as far as they are filled, but in compiled code, which serves every step: there a slot is a tensor, and
columns of zeros stand for what is not there yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .._internal.unsupported import is_exporting
from .base import Evaluation


class History(NamedTuple):
    """What Anderson and Broyden remember; rows first."""

    z: Tensor
    """Point of the last evaluation."""
    fz: Tensor
    """Its image."""
    g: Tensor
    """Its residual."""
    left: Tensor
    """(rows, capacity, D) differences of residuals, or steps."""
    df: Tensor
    """Differences of images."""
    table: Tensor
    """(rows, capacity, capacity) inner products between differences."""
    right: Tensor
    """(rows, columns) inner products of the columns of `left` with g."""
    valid: Tensor | None
    """(rows, capacity) differences that count; None for all."""
    was_plain: Tensor | None
    """(rows,) rows that went back to the evaluation before; None for none."""

    @classmethod
    def begin(cls, z: Tensor, capacity: int, *, may_sync: bool) -> History:
        """Return an empty history: with room for all columns, or none where it grows, as while autograd records."""
        capacity = max(capacity, 0)
        grows = _is_kept()
        new = z.new_empty if may_sync else z.new_zeros
        left, df = (new(z.shape[0], 0 if grows else capacity, z.shape[1]) for _ in range(2))
        right = z.new_zeros(z.shape[0], 0 if may_sync else capacity)
        none = None if may_sync else torch.zeros(z.shape[0], dtype=torch.bool, device=z.device)
        valid = None if none is None else none[:, None].repeat(1, capacity)
        return cls(z, z, z, left, df, z.new_zeros(z.shape[0], capacity, capacity), right, valid, none)

    @property
    def capacity(self) -> int:
        """The most columns."""
        return self.table.shape[1]

    def widen(self, more: int) -> History:
        """Return a history with more columns of zeros."""
        if more <= 0:
            return self
        left, df = (functional.pad(window, (0, 0, 0, more)) for window in (self.left, self.df))
        table, right = functional.pad(self.table, (0, more, 0, more)), functional.pad(self.right, (0, more))
        valid = None if self.valid is None else functional.pad(self.valid, (0, more))
        return self._replace(left=left, df=df, table=table, right=right, valid=valid)

    def forget(self, rows: Tensor) -> History:
        """Return a history that the rows where a mask holds have lost.

        The vectors themselves stay, which saves writing over all of them.
        """
        is_kept = ~rows[:, None]
        valid = is_kept.repeat(1, self.capacity) if self.valid is None else self.valid & is_kept
        table, right = torch.where(rows[:, None, None], 0, self.table), torch.where(rows[:, None], 0, self.right)
        return self._replace(table=table, right=right, valid=valid)

    def go_back(self, at: Evaluation) -> tuple[History, Evaluation]:
        """Put rejected rows back to the evaluation before; return the history without theirs, and the evaluation.

        With the old evaluation in place of the new one all differences vanish, so that an accelerated step becomes a
        plain one. A row whose last step was already plain has nothing to go back to and is accepted as it is.
        """
        if at.rejected is None:
            return (self if self.was_plain is None else self._replace(was_plain=None)), at
        rows = at.rejected if self.was_plain is None else at.rejected & ~self.was_plain
        z, fz, g = (torch.where(rows[:, None], old, new) for old, new in zip(self[:3], at[:3], strict=True))
        return self.forget(rows)._replace(was_plain=rows), at._replace(z=z, fz=fz, g=g)


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
        self._is_kept = _is_kept()

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
        return first(window, self.size)

    def push(self, window: Tensor, new: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        """Write new - old over the oldest column; return the window and the difference."""
        if isinstance(self.index, int) and not self._is_kept:
            return window, torch.sub(new, old, out=window.select(1, self.index))
        difference = new - old
        column = difference.unsqueeze(1)
        if isinstance(self.index, Tensor):
            write = window.index_copy if self._is_kept else window.index_copy_
            return write(1, self.index.reshape(1), column), difference
        if self.index == window.shape[1]:
            return torch.cat([window, column], dim=1), difference
        return window.select_scatter(difference, 1, self.index), difference

    def write(self, table: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Set row and column of the newest vector in a (B, capacity, capacity) table; the row wins at their corner.

        The column may end before the corner.
        """
        if isinstance(self.index, Tensor):
            is_new = torch.arange(self.capacity, device=table.device) == self.index
            table = torch.where(is_new, column.unsqueeze(2), table)
            return torch.where(is_new.unsqueeze(1), row.unsqueeze(1), table)
        table = table.clone() if self._is_kept else table
        part = self.square(table)
        first(part.select(2, self.index), column.shape[1]).copy_(column)
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
        return None if valid is None else self.set(valid, torch.ones_like(valid[:, 0]))


def _is_kept() -> bool:
    """Return whether tensors must not be written over, as a backward pass needs them or a program is made of them."""
    return torch.is_grad_enabled() or is_exporting()


def first(matrix: Tensor, size: int) -> Tensor:
    """Return the first columns of (B, columns, ...) ones, as a view only where that leaves some out."""
    return matrix if matrix.shape[1] == size else matrix.narrow(1, 0, size)


def only(products: Tensor, valid: Tensor | None) -> Tensor:
    """Return (B, size) products with columns, zero for those that do not count."""
    return products if valid is None else torch.where(first(valid, products.shape[1]), products, 0)


def products(window: Tensor, vector: Tensor) -> Tensor:
    """Return the (B, columns) inner products of (B, columns, D) columns with a (B, D) vector."""
    return torch.bmm(vector.unsqueeze(1), window.mT).squeeze(1)


def weighted_sum(weights: Tensor, window: Tensor) -> Tensor:
    """Return the (B, D) sum of columns with (B, columns) weights."""
    return torch.bmm(weights.unsqueeze(1), window).squeeze(1)


def combine(base: Tensor, weights: Tensor, window: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return base + scale * sum_j weights_j columns_j."""
    return torch.baddbmm(base.unsqueeze(1), weights.unsqueeze(1), window, alpha=scale).squeeze(1)


def to_host(number: Tensor) -> Any:
    """Return a number of a solve: on the CPU the host reads its own memory, elsewhere it waits for the device."""
    try:
        return number.tolist()
    except RuntimeError as error:
        # Under the transforms of torch.func, PyTorch 2.6 makes no lists, but reads single numbers.
        if "doesn't have storage" not in str(error):
            raise
        return number.item() if number.ndim == 0 else [to_host(one) for one in number]


def solve_any(table: Tensor, right: Tensor) -> Tensor:
    """Solve (B, m, m) systems for (B, m) right-hand sides, of which some may have no finite solution."""
    if is_exporting():
        return _eliminate(table, right, range(table.shape[1]), least=0.0)
    return torch.linalg.solve_ex(table, right.unsqueeze(2))[0].squeeze(2)


def finite_rows(weights: Tensor) -> Tensor:
    """Return weights in which a row that is not finite is zero."""
    return torch.where(weights.isfinite().all(dim=1, keepdim=True), weights, 0)


LEAST_PIVOT = 100.0
"""Squared sine of a column's angle to newer ones, in epsilons, below which the column is left out."""


def solve_gram(gram: Tensor, right: Tensor, newest: int | Tensor, norm: Tensor, *, may_sync: bool) -> Tensor:
    """Solve (B, m, m) systems of inner products of columns, leaving out those that tell nothing.

    That is a column that depends on newer ones, as what is left of it, once these are projected out, is close to what
    rounding makes of the inner products; and one that is no longer than rounding itself. Its weight is zero and has no
    derivative, as is every weight of a row that is not finite.

    Args:
        gram: Inner products of the columns with each other, in the order of slots.
        right: (B, m) inner products with the right-hand side.
        newest: The slot of the newest column.
        norm: (B,) length of which a column is rounding up to eps.
        may_sync: Whether the host may read the pivots, which saves work if no column is left out.
    """
    eps = torch.finfo(gram.dtype).eps
    least = LEAST_PIVOT * eps
    if torch.compiler.is_compiling():
        return _solve_without_dependent(gram, right, newest, (eps * norm).square().unsqueeze(1), least)
    factor, info = torch.linalg.cholesky_ex(gram)
    pivots, diagonal = factor.diagonal(dim1=1, dim2=2), gram.diagonal(dim1=1, dim2=2)
    if may_sync:
        # Negative where squared pivots exceed both their least part of the diagonal and rounding.
        lengths = norm.unsqueeze(1)
        excess = torch.addcmul(diagonal, lengths, lengths, value=eps * eps / least)
        excess = torch.addcmul(excess, pivots, pivots, value=-1 / least).amax()
        if to_host(excess) < 0 and not to_host(info.any()):
            return torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
    # Each row goes its own way, so that none depends on its neighbors; no garbage of failed rows enters a graph.
    floor = (eps * norm).square().unsqueeze(1)
    is_regular = (pivots.square() / diagonal).amin(dim=1) - info > least
    is_regular = (is_regular & (diagonal > floor).all(dim=1)).unsqueeze(1)
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
    return finite_rows(weights * scales)


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
