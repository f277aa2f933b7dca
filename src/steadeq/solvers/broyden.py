"""Limited-memory Broyden."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .._internal.validation import check_count
from ._window import Slot, combine, forget, go_back, look, new_window, only, products, solve_small
from .base import AbstractSolver, Evaluation


class BroydenState(NamedTuple):
    """The running estimate of the inverse; SHINE reuses it for the backward pass."""

    z: Tensor
    """Point of the last evaluation."""
    fz: Tensor
    """Its image."""
    g: Tensor
    """Its residual."""
    s: Tensor
    """(rows, capacity, D) steps."""
    df: Tensor
    """Changes of the image."""
    table: Tensor
    """(rows, capacity, capacity): s_i . y_j where pair j is not older than pair i (y is the change of g), and
    s_i . df_j where it is. An entry never changes while both of its pairs are in the window."""
    right: Tensor
    """(rows, columns) s_i . g at the last evaluation."""
    valid: Tensor | None
    """(rows, capacity) pairs that count; None for all."""
    was_plain: Tensor | None
    """(rows,) rows that went back to the evaluation before; None for none."""

    def apply_transposed(self, u: Tensor) -> Tensor:
        """Return -Hᵀ u for a (B, D) matrix, with H the estimate of the inverse of J - I."""
        size = self.right.shape[1]
        if size == 0:
            return u
        tiny = torch.finfo(u.dtype).tiny * torch.eye(size, dtype=u.dtype, device=u.device)
        system = self.table[:, :size, :size] + tiny
        right = only(products(self.df[:, :size], u), self.valid)
        return combine(u, solve_small(system.mT, right), self.s[:, :size], scale=-1.0)


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

    # Residuals may rise far before they fall: on affine maps the end comes within 2 n steps all the same. So only an
    # explosion is rejected, and no number of evaluations without progress is too long.
    max_growth = 1e15
    max_stalled_windows = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_count("memory", self.memory)

    def init(self, z: Tensor, *, eps: float, may_ask: bool) -> BroydenState:
        """Return an empty history."""
        largest = self.max_evals - 1
        capacity = largest if self.memory is None else min(self.memory, largest)
        nothing = torch.zeros_like(z)
        none = None if may_ask else torch.zeros(z.shape[0], dtype=torch.bool, device=z.device)
        return BroydenState(
            z=nothing,
            fz=nothing,
            g=nothing,
            s=new_window(z, capacity, may_ask=may_ask),
            df=new_window(z, capacity, may_ask=may_ask),
            table=z.new_zeros(z.shape[0], capacity, capacity),
            right=z.new_zeros(z.shape[0], 0 if may_ask else capacity),
            valid=None if none is None else none[:, None].repeat(1, capacity),
            was_plain=none,
        )

    def widen(self, state: BroydenState, num_evals: int) -> BroydenState:
        """Return the state with columns of zeros where there is no room for as many pairs, in blocks of eight."""
        capacity = 8 * math.ceil((num_evals - 1) / 8)
        more = (capacity if self.memory is None else min(self.memory, capacity)) - state.table.shape[1]
        if more <= 0:
            return state
        wider = functional.pad(state.s, (0, 0, 0, more)), functional.pad(state.df, (0, 0, 0, more))
        return state._replace(
            s=wider[0],
            df=wider[1],
            table=functional.pad(state.table, (0, more, 0, more)),
            right=functional.pad(state.right, (0, more)),
            valid=None if state.valid is None else functional.pad(state.valid, (0, more)),
        )

    def step(self, state: BroydenState, at: Evaluation) -> tuple[BroydenState, Tensor]:
        """Return z - H g, with H the inverse estimate after the newest secant pair."""
        z, fz, g, capacity = at.z, at.fz, at.g, state.table.shape[1]
        if at.is_first or capacity < 1:
            return state._replace(z=z, fz=fz, g=g), fz
        table, valid, before, was_plain = state.table, state.valid, state.right, None
        if at.rejected is not None:
            pairs = (state.z, z), (state.fz, fz), (state.g, g)
            was_plain, (z, fz, g) = go_back(at.rejected, state.was_plain, *pairs)
            table, valid = forget(was_plain, table, valid)
            before = torch.where(was_plain.unsqueeze(1), 0, before)
        slot = Slot(at, capacity)
        s, newest = slot.push(state.s, z, state.z)
        df, _ = slot.push(state.df, fz, state.fz)
        valid = slot.renew(valid)
        row, right = slot.products(df, newest), only(slot.products(s, g), valid)
        change = g - state.g
        corner = slot.product(newest, change)
        # s_i . y is what s_i . g changed by, which saves a pass over the window; the new pair has no earlier product.
        missing = slot.size - before.shape[1]
        column = right - (functional.pad(before, (0, missing)) if missing > 0 else before[:, : slot.size])
        table = slot.write(table, only(slot.set(row, corner), valid), only(column, valid))
        # Keeps the system of a cleared row, whose table is zero, solvable; its solution is zero.
        tiny = torch.finfo(z.dtype).tiny * torch.eye(slot.size, dtype=z.dtype, device=z.device)
        weights = solve_small(slot.square(table) + tiny, right, may_ask=at.may_ask)
        largest = weights.abs()
        if not at.may_ask or look(largest.max()) > _SUSPICIOUS:
            lost = self._is_lost(at, slot, largest, change, df)
            weights = torch.where(lost.unsqueeze(1), 0, weights)
            table, valid = forget(lost, table, valid)
            right = torch.where(lost.unsqueeze(1), 0, right)
        state = BroydenState(z, fz, g, s, df, table, right, valid, was_plain)
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
"""Size of weights, and of steps beside g, beyond which a history may tell nothing."""
_SUSPICIOUS = 1e3
"""Size of weights from which on a history is looked at."""
