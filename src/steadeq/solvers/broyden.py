"""Limited-memory Broyden."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .._internal.validation import check_count
from ._history import Diagonals, History, LastEvaluation, Table, combine, look, products, solve_small
from .base import AbstractSolver, Rule


@dataclass(frozen=True, kw_only=True)
class Broyden(AbstractSolver):
    """Broyden's good method on f(z) - z, from the inverse Jacobian -I.

    The inverse is kept in the compact form of Byrd, Nocedal and Schnabel (1994): with steps S, changes of the image dF
    and a small table K, the step is g + dF K^-1 Sᵀ g. A full window drops its oldest column of S and dF, and all secant
    equations that remain hold exactly as they were built.

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> eq = fixed_point(torch.cos, torch.zeros(1, 2), solver=Broyden(tol=1e-6))
        >>> eq.z, int(eq.stats.num_evals)
        (tensor([[0.7391, 0.7391]]), 6)
    """

    memory: int | None = None
    """Number of rank-one updates that are kept, at two states of memory each; None for all, as a short window slows
    hard solves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_count("memory", self.memory)

    def start(self, z: Tensor, eps: float) -> BroydenRule:
        """Return a fresh rule."""
        return BroydenRule(self, z)


LARGE = 1e8
"""Size of weights, and of steps beside g, beyond which a history may tell nothing."""


class BroydenRule(Rule):
    """The running inverse estimate; SHINE reuses it for the backward pass."""

    # Broyden's residuals may rise far before they fall: on affine maps the end comes within 2 n steps all the same. So
    # no growth is rejected, and no number of evaluations without progress is too long.
    max_stalled_windows = math.inf

    def __init__(self, solver: Broyden, z: Tensor) -> None:
        largest = solver.max_evals - 1
        self._capacity = largest if solver.memory is None else min(solver.memory, largest)
        self._s, self._df, self._table = History(self._capacity), History(self._capacity), Table(self._capacity)
        # Keeps the system of a cleared row, whose table is zero, solvable; its solution is zero.
        self._tiny = Diagonals(0.0, torch.finfo(z.dtype).tiny, self._capacity, z)
        self._last = LastEvaluation()
        self._system: Tensor | None = None
        self._right: Tensor | None = None
        self._norms: Tensor | None = None

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None) -> Tensor:
        """Return z - H g, with H the inverse estimate after the newest secant pair."""
        if self._last.matrices is None or self._capacity < 1:
            self._last.matrices = (z, fz, g)
            return fz
        if rejected is None:
            self._last.accept()
        else:
            (z, fz, g), cleared = self._last.rollback((z, fz, g), rejected)
            self._clear(cleared)
        z_last, fz_last, g_last = self._last.matrices
        newest = self._s.push_difference(z, z_last)
        self._df.push_difference(fz, fz_last)
        self._last.matrices = (z, fz, g)
        s, df, size, slot = self._s.columns, self._df.columns, len(self._s), self._s.slot
        # The table holds s_i . y_j where pair j is not older than pair i (y is the change of g), and s_i . df_j where
        # it is; an entry never changes while both of its pairs are in the window.
        self._table.renew(slot)
        row, right = products(df, newest), self._table.valid(products(s, g))
        corner = torch.linalg.vecdot(newest, g - g_last)
        # s_i . y is what s_i . g changed by, which saves a pass over the window; the new pair has no earlier product.
        before = right if self._right is None else self._right
        column = right - (before if before.shape[1] == size else functional.pad(before, (0, 1)))
        column.select(1, slot).copy_(corner)
        row.select(1, slot).copy_(corner)
        self._right = right
        self._system = self._tiny[size] + self._table.write(slot, size, row=row, column=column)
        weights = solve_small(self._system, right, may_look=self.may_look)
        largest = weights.abs()
        if not self.may_look or look(largest.max()) > LARGE:
            # Either the columns are small beside g, as after residuals have grown, or a pair has s . y = 0 up to
            # rounding and tells nothing: then the row starts anew.
            is_lost = (largest * self._lengths(df, slot)).amax(dim=1) > LARGE * torch.linalg.vector_norm(g, dim=1)
            is_lost = is_lost & (largest.amax(dim=1) > LARGE)
            weights = torch.where(is_lost.unsqueeze(1), 0, weights)
            self._clear(is_lost)
        return combine(fz, weights, df, scale=-1.0)

    def _lengths(self, df: Tensor, slot: int) -> Tensor:
        """Return the (B, columns) lengths of the changes of the image."""
        if self.may_look:
            return torch.linalg.vector_norm(df, dim=2)
        # Asked for at each step, at which one vector is new.
        newest = torch.linalg.vector_norm(df[:, slot].detach(), dim=1)
        norms = newest.new_zeros(len(newest), self._capacity) if self._norms is None else self._norms
        norms[:, slot] = newest
        self._norms = norms
        return norms[:, : df.shape[1]]

    def _clear(self, rows: Tensor) -> None:
        """Forget the history of the rows where the mask holds."""
        self._table.clear(rows)
        if self._right is not None:
            self._right = torch.where(rows.unsqueeze(1), 0, self._right)

    def apply_transposed(self, u: Tensor) -> Tensor:
        """Return -Hᵀ u for a (B, D) matrix, with H the estimate of the inverse of J - I."""
        if self._system is None:
            return u
        right = self._table.valid(products(self._df.columns, u))
        return combine(u, solve_small(self._system.mT, right), self._s.columns, scale=-1.0)

    def select(self, rows: Tensor) -> None:
        """Keep the given rows."""
        for part in (self._s, self._df, self._table, self._last):
            part.select(rows)
        if self._system is not None and self._right is not None:
            self._system = self._system.index_select(0, rows)
            self._right = self._right.index_select(0, rows)
        if self._norms is not None:
            self._norms = self._norms.index_select(0, rows)
