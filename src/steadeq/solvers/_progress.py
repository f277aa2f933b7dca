"""Bookkeeping of a solve: what is kept of each sample, and when it is done.

There are two ways, with the same results. `Progress` looks at the numbers after every evaluation, and does no more than
it has to. `MaskedProgress` never looks, or only now and then: all is decided by masks on the device, so that the host
need not wait for it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..equilibrium import SolveStats, Status
from ._history import look
from .base import WINDOW, AbstractLinearSolver


class Progress:
    """Per-sample bookkeeping of one solve that looks at every evaluation.

    The common case, in which every sample improves and none finishes, costs a few small kernels on (B,) vectors; all
    else is paid for only when something happens.

    Rows are the samples still carried along. A finished row rides with the others until `wants_selection` asks to
    drop it; its result is kept from the moment it finished.

    Args:
        payload: What is kept of each row before its first evaluation. Of later ones the best is kept: its point, or
            whatever leads back to it, such as the number of products with which a Krylov method had its least residual.
        residual: (B,) relative residual before the first evaluation, or None if that is not known yet.
        solver: Solver whose budget and tolerance apply.
        eps: Precision of the evaluations.
        num_quiet_windows: See `Rule`.
        max_stalled_windows: See `Rule`.
        keep_last: Keep the last finite evaluation in the place of the best.
    """

    def __init__(
        self,
        payload: Tensor,
        residual: Tensor | None,
        solver: AbstractLinearSolver,
        eps: float,
        *,
        num_quiet_windows: int = 1,
        max_stalled_windows: float = 3,
        keep_last: bool = False,
    ) -> None:
        self.num_evals = 0
        self.goes_on = True
        """Whether there is budget left and, as far as is known, a row to spend it on."""
        self.rejected: Tensor | None = None
        """Current rows whose merit grew beyond what the rule allows, if any."""
        self.finished: Tensor | None = None
        """Current rows that are done and only ride along, if any."""
        self._batch_size = payload.shape[0]
        # What is beyond the largest number of the dtype accepts all that is finite, as that number does.
        self._tol, self._max_evals = min(solver.tol, torch.finfo(payload.dtype).max), solver.max_evals
        self._floor, self._num_quiet_windows, self._max_stalled = 100 * eps, num_quiet_windows, max_stalled_windows
        self._keep_last = keep_last
        self._rows: Tensor | None = None
        self._trace: list[tuple[Tensor, Tensor | None]] = []
        self._results: list[_Result] = []
        self._num_riding = self._num_leaving = 0
        self._best, self._window = payload, list[Tensor]()
        # Nothing happens as long as every row improves and has not converged: by a positive slack of
        # (kept merit - merit, residual - tol), which no row has that is not finite. Made at once, and without
        # broadcasting later, as each small kernel of a solve shows next to a small f.
        table = payload.new_tensor([[-1.0, 1.0], [math.inf, -self._tol], [math.inf, math.inf]])
        numbers = table.unsqueeze(2).expand(-1, -1, self._batch_size).contiguous()
        self._sign, self._limit, self._kept = numbers.unbind()
        self._offset = self._limit
        self._snapshot = self._kept
        # Windows in a row without progress.
        self._num_stalled: Tensor | int = 0
        # How often in a row the tolerance was met, and how often it must be.
        self._num_met: Tensor | int = 0
        self._num_to_meet = getattr(solver, "patience", 1)
        if residual is not None:
            self._kept = self._snapshot = residual.expand(2, -1)
            self._finish(residual <= self._tol, Status.CONVERGED)
            self._offset = torch.minimum(self._kept, self._limit)

    def record(
        self, z: Tensor, measures: Tensor, image_norm: Tensor | None = None, max_growth: float = math.inf
    ) -> None:
        """Take in one evaluation of the current rows.

        Args:
            z: The points.
            measures: (2, rows) their merits and relative residuals; see `Scale`.
            image_norm: (rows,) norms of their images, if a residual may be small because such a norm overflows.
            max_growth: See `Rule`.
        """
        self.num_evals += 1
        self.rejected = None
        self._trace.append((measures, self._rows))
        if self._num_to_meet > 1:
            self._num_met = torch.where(measures[1] <= self._tol, self._num_met + 1, 0)
        slack = torch.addcmul(self._offset, measures, self._sign)
        if look(slack.min()) > 0:
            self._best, self._kept = z, measures
        else:
            # The least of all rows, which is NaN or infinite where some row is not finite.
            merit_slack, residual_slack = look(slack.amin(dim=1))
            if merit_slack > -math.inf and residual_slack > 0:
                self._keep_better(z, measures, self._is_better(measures), max_growth)
            else:
                self._settle(z, measures, image_norm, max_growth)
        if self._tol > 0:
            self._window.append(measures)
            if len(self._window) == WINDOW:
                self._check_stagnation()
        self._offset = torch.minimum(self._kept, self._limit)
        self.goes_on = self.num_evals < self._max_evals and self._num_riding < measures.shape[1]

    def _settle(self, z: Tensor, measures: Tensor, image_norm: Tensor | None, max_growth: float) -> None:
        """Handle an evaluation at which some row finished or failed."""
        is_finite = _are_finite(measures, image_norm)
        is_converged = (measures[1] <= self._tol) & is_finite
        if self._num_to_meet > 1:
            is_converged = is_converged & (self._num_met >= self._num_to_meet)
        # What meets the tolerance is returned, whatever came before.
        better = is_converged | (self._is_better(measures) & is_finite)
        self._keep_better(z, measures, better, max_growth)
        self._finish(is_converged, Status.CONVERGED)
        self._finish(~is_finite, Status.NON_FINITE)

    def _is_better(self, measures: Tensor) -> Tensor:
        return measures[0].isfinite() if self._keep_last else measures[0] <= self._kept[0]

    def _keep_better(self, z: Tensor, measures: Tensor, better: Tensor, max_growth: float) -> None:
        self._best = torch.where(better.unsqueeze(1), z, self._best)
        if max_growth != math.inf:
            rejected = measures[0] > max_growth * self._kept[0]
            # Handed on only if it says something, as a rule has to do much about it.
            self.rejected = rejected if look(rejected.any()) else None
        self._kept = torch.where(better, measures, self._kept)

    def _check_stagnation(self) -> None:
        is_stalled, self._snapshot = _look_back(self._kept, self._window, self._snapshot)
        self._num_stalled = torch.where(is_stalled, self._num_stalled + 1, 0)
        self._window = []
        limit = torch.where(self._kept[1] < self._floor, 1, self._max_stalled)
        self._finish(self._num_stalled >= self._num_quiet_windows * limit, Status.STAGNATED)

    def _finish(self, mask: Tensor, status: Status) -> None:
        if self.finished is not None:
            mask = mask & ~self.finished
        index = mask.nonzero()[:, 0]
        if index.numel() == 0:
            return
        self._results.append(
            _Result(
                rows=index if self._rows is None else self._rows.index_select(0, index),
                payload=self._best.index_select(0, index),
                residual=self._kept[1].index_select(0, index),
                num_evals=self.num_evals,
                status=status,
            )
        )
        self.finished = mask if self.finished is None else self.finished | mask
        self._num_riding += index.numel()
        # A failed row costs its neighbors nothing, and does not change when they are compacted.
        self._num_leaving += 0 if status is Status.NON_FINITE else index.numel()
        # Nothing more happens to these rows.
        self._limit = torch.where(mask, math.inf, self._limit)
        self._kept = torch.where(mask, math.inf, self._kept)
        self.goes_on = self._num_riding < mask.shape[0]

    @property
    def wants_selection(self) -> bool:
        """Whether enough rows have finished for dropping them to pay off."""
        return self._num_leaving > 0 and 4 * self._num_leaving >= self._kept.shape[1]

    def select(self) -> Tensor:
        """Drop finished rows and return the index of those that stay."""
        assert self.finished is not None
        rows = (~self.finished).nonzero()[:, 0]
        for name in ("_best", "_num_stalled", "_num_met"):
            value = getattr(self, name)
            setattr(self, name, value.index_select(0, rows) if isinstance(value, Tensor) else value)
        for name in ("_sign", "_limit", "_offset", "_kept", "_snapshot"):
            setattr(self, name, getattr(self, name).index_select(1, rows))
        self._window = [measures.index_select(1, rows) for measures in self._window]
        if self.rejected is not None:
            self.rejected = self.rejected.index_select(0, rows)
        self._rows = rows if self._rows is None else self._rows.index_select(0, rows)
        self.finished, self._num_riding, self._num_leaving = None, 0, 0
        return rows

    def payloads(self) -> Tensor:
        """Return what is kept of every sample's best evaluation so far, finished or not."""
        if not self._results:
            return self._best
        if self._rows is None:
            payloads = self._best
        else:
            payloads = self._best.new_zeros(self._batch_size, self._best.shape[1])
            payloads = payloads.index_copy(0, self._rows, self._best)
        for result in self._results:
            payloads = payloads.index_copy(0, result.rows, result.payload)
        return payloads

    def residuals(self) -> Tensor:
        """Return the relative residual of every sample's best evaluation so far, as long as no rows were dropped."""
        residuals = self._kept[1].clone()
        for result in self._results:
            residuals[result.rows] = result.residual
        return residuals

    def result(self) -> SolveStats:
        """Return how the solve went."""
        if not self._results:
            num_evals = torch.full_like(self._kept[1], self.num_evals, dtype=torch.int64)
            return SolveStats(
                residual=self._kept[1],
                num_evals=num_evals,
                status=torch.full_like(num_evals, int(Status.MAX_EVALS)),
                trace=torch.stack([measures for measures, _ in self._trace])[:, 1],
            )
        rest = torch.ones_like(self._kept[1], dtype=torch.bool) if self.finished is None else ~self.finished
        residual = self._kept.new_empty(self._batch_size)
        num_evals = torch.empty_like(residual, dtype=torch.int64)
        status = torch.empty_like(num_evals)
        self._finish(rest, Status.MAX_EVALS)
        for result in self._results:
            residual[result.rows] = result.residual
            num_evals[result.rows] = result.num_evals
            status[result.rows] = int(result.status)
        trace = _assemble_trace(self._trace, residual, num_evals)
        return SolveStats(residual=residual, num_evals=num_evals, status=status, trace=trace)


class _Result(NamedTuple):
    """Rows that finished together."""

    rows: Tensor
    payload: Tensor
    residual: Tensor
    num_evals: int
    status: Status


class MaskedProgress:
    """Per-sample bookkeeping of one solve by masks on the device, with the results of `Progress`.

    Whether all rows are finished is asked for every `check_every` evaluations, and never at a tolerance of zero. Until
    then finished rows ride along, and masks keep what they came to.

    Args:
        payload: See `Progress`.
        residual: See `Progress`.
        solver: See `Progress`.
        eps: See `Progress`.
        check_every: Number of evaluations from one question to the next.
        num_quiet_windows: See `Rule`.
        max_stalled_windows: See `Rule`.
        keep_last: See `Progress`.
    """

    def __init__(
        self,
        payload: Tensor,
        residual: Tensor | None,
        solver: AbstractLinearSolver,
        eps: float,
        *,
        check_every: int,
        num_quiet_windows: int = 1,
        max_stalled_windows: float = 3,
        keep_last: bool = False,
    ) -> None:
        is_known = residual is not None
        if residual is None:
            residual = payload.new_full((payload.shape[0],), math.inf)
        self.num_evals = 0
        self.goes_on = True
        """Whether there is budget left and, as far as is known, a row to spend it on."""
        self.rejected: Tensor | None = None
        """Which current rows have a merit that grew beyond what the rule allows, or None if it allows everything."""
        self.wants_selection = False
        """Whether enough rows have finished for dropping them to pay off."""
        self._tol, self._max_evals = min(solver.tol, torch.finfo(residual.dtype).max), solver.max_evals
        self._check_every = check_every if solver.tol > 0 else solver.max_evals
        self._floor, self._num_quiet_windows, self._max_stalled = 100 * eps, num_quiet_windows, max_stalled_windows
        self._keep_last = keep_last
        self._num_to_meet = getattr(solver, "patience", 1)
        self._rows: Tensor | None = None
        self._whole: tuple[Tensor, ...] | None = None
        self._trace: list[tuple[Tensor, Tensor | None]] = []
        self._window = list[Tensor]()
        self._best, self._kept = payload, residual.expand(2, -1)
        self._snapshot = self._kept
        self._num_stalled = self._num_met = self._evals = torch.zeros_like(residual, dtype=torch.int64)
        self._status = torch.full_like(self._evals, _RUNNING)
        if is_known:
            self._finish(residual <= self._tol, Status.CONVERGED)

    @property
    def finished(self) -> Tensor:
        """Current rows that are done and only ride along."""
        return self._status != _RUNNING

    def record(
        self, z: Tensor, measures: Tensor, image_norm: Tensor | None = None, max_growth: float = math.inf
    ) -> None:
        """Take in one evaluation of the current rows; see `Progress`."""
        self.num_evals += 1
        self._trace.append((measures, self._rows))
        is_finite = _are_finite(measures, image_norm)
        is_converged = (measures[1] <= self._tol) & is_finite
        if self._num_to_meet > 1:
            self._num_met = torch.where(measures[1] <= self._tol, self._num_met + 1, 0)
            is_converged = is_converged & (self._num_met >= self._num_to_meet)
        is_better = is_finite if self._keep_last else measures[0] <= self._kept[0]
        # What meets the tolerance is returned, whatever came before.
        is_better = (is_converged | is_better) & is_finite & ~self.finished
        if max_growth != math.inf:
            self.rejected = measures[0] > max_growth * self._kept[0]
        self._best = torch.where(is_better.unsqueeze(1), z, self._best)
        self._kept = torch.where(is_better, measures, self._kept)
        self._finish(is_converged, Status.CONVERGED)
        self._finish(~is_finite, Status.NON_FINITE)
        if self._tol > 0:
            self._window.append(measures)
            if len(self._window) == WINDOW:
                self._check_stagnation()
        self.goes_on, self.wants_selection = self.num_evals < self._max_evals, False
        if self.goes_on and self.num_evals % self._check_every == 0:
            self._check()

    def _check(self) -> None:
        """Ask how many rows are left: the one place at which the host waits for the device."""
        num_running = (~self.finished).sum()
        num_leaving = (self.finished & (self._status != Status.NON_FINITE)).sum()
        running, leaving = look(torch.stack([num_running, num_leaving]))
        self.goes_on, self.wants_selection = running > 0, leaving > 0 and 4 * leaving >= len(self._status)

    def _check_stagnation(self) -> None:
        is_stalled, self._snapshot = _look_back(self._kept, self._window, self._snapshot)
        self._num_stalled = torch.where(is_stalled, self._num_stalled + 1, 0)
        self._window = []
        limit = torch.where(self._kept[1] < self._floor, 1, self._max_stalled)
        self._finish(self._num_stalled >= self._num_quiet_windows * limit, Status.STAGNATED)

    def _finish(self, mask: Tensor, status: Status) -> None:
        mask = mask & ~self.finished
        self._status = torch.where(mask, int(status), self._status)
        self._evals = torch.where(mask, self.num_evals, self._evals)

    def select(self) -> Tensor:
        """Drop finished rows and return the index of those that stay."""
        rows = (~self.finished).nonzero()[:, 0]
        self._whole = self._merged()
        for name in ("_best", "_num_stalled", "_num_met", "_status", "_evals"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        for name in ("_kept", "_snapshot"):
            setattr(self, name, getattr(self, name).index_select(1, rows))
        self._window = [measures.index_select(1, rows) for measures in self._window]
        if self.rejected is not None:
            self.rejected = self.rejected.index_select(0, rows)
        self._rows = rows if self._rows is None else self._rows.index_select(0, rows)
        return rows

    def _merged(self) -> tuple[Tensor, ...]:
        """Return payload, residual, number of evaluations and status of the whole batch."""
        current = self._best, self._kept[1], self._evals, self._status
        if self._rows is None or self._whole is None:
            return current
        pairs = zip(self._whole, current, strict=True)
        return tuple(whole.index_copy(0, self._rows, part) for whole, part in pairs)

    def payloads(self) -> Tensor:
        """Return what is kept of every sample's best evaluation so far, finished or not."""
        return self._merged()[0]

    def residuals(self) -> Tensor:
        """Return the relative residual of every sample's best evaluation so far."""
        return self._merged()[1]

    def result(self) -> SolveStats:
        """Return how the solve went."""
        _, residual, num_evals, status = self._merged()
        num_evals = torch.where(status == _RUNNING, self.num_evals, num_evals)
        status = torch.where(status == _RUNNING, int(Status.MAX_EVALS), status)
        # Evaluations that were made before somebody asked, when all rows were finished, are nobody's.
        lines = self._trace[: int(num_evals.max())] if self._tol > 0 else self._trace
        trace = _assemble_trace(lines, residual, num_evals)
        return SolveStats(residual=residual, num_evals=num_evals, status=status, trace=trace)


CHECK_EVERY = 4
"""Number of evaluations from one question to the next on accelerators, where each makes the host wait."""


def start_progress(
    payload: Tensor, residual: Tensor | None, solver: AbstractLinearSolver, eps: float, **options: Any
) -> Progress | MaskedProgress:
    """Return the bookkeeping of a solve: one that looks at every evaluation where that costs nothing, else by masks.

    Args:
        payload: See `Progress`.
        residual: See `Progress`.
        solver: See `Progress`.
        eps: See `Progress`.
        **options: Further arguments of both.
    """
    is_host = payload.device.type == "cpu"
    check_every = solver.check_every or (1 if is_host else CHECK_EVERY)
    if check_every == 1 and (is_host or solver.tol > 0):
        return Progress(payload, residual, solver, eps, **options)
    return MaskedProgress(payload, residual, solver, eps, check_every=check_every, **options)


_RUNNING = -1
"""Status of a row that is not finished."""


def _are_finite(measures: Tensor, image_norm: Tensor | None) -> Tensor:
    is_finite = measures.isfinite().all(dim=0)
    return is_finite if image_norm is None else is_finite & image_norm.isfinite()


def _look_back(kept: Tensor, window: list[Tensor], snapshot: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows made no progress over a window of measures, and the (2, rows) measures to compare with next.

    Progress by either measure counts: on the way through a hump the residual may fall while ‖g‖ grows.
    """
    latest = torch.stack([kept[0], torch.stack(window)[:, 1].amin(dim=0).minimum(snapshot[1])])
    return (latest > 0.999 * snapshot).all(dim=0), latest


def _assemble_trace(lines: list[tuple[Tensor, Tensor | None]], residual: Tensor, num_evals: Tensor) -> Tensor:
    """Return the (evaluations, B) residuals from those of the rows of each evaluation; finished rows stay as they were.

    Args:
        lines: Measures of each evaluation, and which rows of the batch they are of, or None for all.
        residual: (B,) residuals that the samples ended with.
        num_evals: (B,) how many evaluations each sample took.
    """
    if lines and all(rows is None for _, rows in lines):
        trace = torch.stack([measures for measures, _ in lines])[:, 1]
    else:
        trace = residual.new_zeros(len(lines), len(residual))
        for line, (measures, rows) in zip(trace, lines, strict=True):
            line[slice(None) if rows is None else rows] = measures[1]
    last = torch.arange(len(lines), device=trace.device)[:, None].minimum((num_evals - 1).clamp(min=0))
    return trace.gather(0, last).nan_to_num(nan=math.inf, posinf=math.inf)
