"""Limited-memory Broyden."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._internal.unsupported import is_exporting
from .._internal.validation import check_count
from ._window import History, Slot, combine, finite_rows, first, only, products, solve_any, to_host
from .base import AbstractSolver, Evaluation


@dataclass(frozen=True, kw_only=True)
class Broyden(AbstractSolver):
    """Broyden's good method on f(z) - z, starting from -I as the inverse Jacobian.

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
    """Number of rank-one updates to keep, each of which takes the memory of two states; None keeps all, as a short
    window slows hard solves."""

    # Residuals may rise far before they fall: on affine maps the end comes within 2 n steps all the same. So only an
    # explosion is rejected, and no number of evaluations without progress is too long.
    max_growth = 1e15
    max_stalled_windows = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_count("memory", self.memory)

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> History:
        """Return an empty history.

        Its table holds s_i . y_j where pair j is not older than pair i (y is the change of g), and s_i . df_j where it
        is. An entry never changes while both of its pairs are in the window.
        """
        largest = self.max_evals - 1
        return History.begin(z, largest if self.memory is None else min(self.memory, largest), may_sync=may_sync)

    def widen(self, state: History, num_evals: int) -> History:
        """Return the state with room for as many pairs, in blocks of eight."""
        capacity = 8 * math.ceil((num_evals - 1) / 8)
        return state.widen((capacity if self.memory is None else min(self.memory, capacity)) - state.capacity)

    def step(self, state: History, at: Evaluation) -> tuple[History, Tensor]:
        """Return z - H g, with H the inverse estimate after the newest secant pair."""
        if at.is_first or state.capacity < 1:
            return History(*at[:3], *state[3:]), at.fz
        state, at = state.go_back(at)
        z, fz, g, before, slot = at.z, at.fz, at.g, state.right, Slot(at, state.capacity)
        s, newest = slot.push(state.left, z, state.z)
        df, _ = slot.push(state.df, fz, state.fz)
        valid = slot.renew(state.valid)
        row, right = slot.products(df, newest), only(slot.products(s, g), valid)
        change = g - state.g
        corner = slot.product(newest, change)
        # s_i . y is what s_i . g changed by, which saves a pass over the window; the new pair has no earlier product.
        before = first(before, min(before.shape[1], slot.size))
        column = first(right, before.shape[1]) - before
        table = slot.write(state.table, only(slot.set(row, corner), valid), only(column, valid))
        system = slot.square(table)
        if not is_exporting():
            # A row that was cleared, and is all zeros, is then a system whose solution is zero; others do not change.
            # What is exported finds that solution without this, and ONNX cannot write to a part of a tensor.
            system.diagonal(dim1=1, dim2=2).add_(torch.finfo(g.dtype).tiny)
        weights = solve_any(system, right)
        state = History(z, fz, g, s, df, table, right, valid, state.was_plain)
        if not at.may_sync or not to_host(torch.linalg.vector_norm(weights, math.inf)) <= _SUSPICIOUS:
            weights = finite_rows(weights)
            lost = self._is_lost(at, slot, weights.abs(), change, df)
            weights, state = torch.where(lost.unsqueeze(1), 0, weights), state.forget(lost)
        return state, combine(fz, weights, slot.filled(df), scale=-1.0)

    @staticmethod
    def _is_lost(at: Evaluation, slot: Slot, largest: Tensor, change: Tensor, df: Tensor) -> Tensor:
        """Return the rows that start anew, as their history tells nothing.

        Weights are large where columns are small beside g, as after residuals have grown, which is fine; or where a
        pair has s . y = 0 up to rounding. And a change of g that is no longer than rounding is no change.
        """
        lengths = slot.product(change, change).sqrt()
        is_noise = (largest.amax(dim=1) > _SUSPICIOUS) & (lengths <= torch.finfo(at.norm.dtype).eps * at.norm)
        columns = torch.linalg.vector_norm(slot.filled(df).detach(), dim=2)
        is_long = (largest * columns).amax(dim=1) > LARGE * torch.linalg.vector_norm(at.g, dim=1)
        return is_noise | (is_long & (largest.amax(dim=1) > LARGE))


LARGE = 1e8
"""Size of weights, and of steps relative to g, beyond which a history is not trusted."""
_SUSPICIOUS = 1e3
"""Size of weights from which on a history is looked at."""


def apply_transposed(state: History, u: Tensor) -> Tensor:
    """Return -Hᵀ u for a (B, D) matrix, with H the estimate of the inverse of J - I, as SHINE needs it."""
    size = state.right.shape[1]
    if size == 0:
        return u
    right = only(products(state.df[:, :size], u), state.valid)
    # Of rows that were cleared since, the table is all zeros.
    tiny = torch.finfo(u.dtype).tiny * torch.eye(size, dtype=u.dtype, device=u.device)
    weights = finite_rows(solve_any((state.table[:, :size, :size] + tiny).mT, right))
    return combine(u, weights, state.left[:, :size], scale=-1.0)
