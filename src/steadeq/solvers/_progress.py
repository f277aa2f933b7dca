"""What is kept of each sample, and when it is done: decided here for every kind of solve.

`record` takes in one evaluation by masks on the device, and asks the host nothing: compiled and exported solves, and
those on accelerators, use it as it is. `Progress` puts one look in front of it where looking costs nothing: as long as
every sample improves and none finishes, which is the common case, there is no more to do.

Two measures are taken of each evaluation, with g = f(z) - z. A sample stops by its relative residual ‖g‖ / ‖f(z)‖.
Which iterate is the best, and whether a step made things worse, is judged by its merit: ‖g‖ over ‖f(z)‖ too, as long as
the latter is of the size of the first evaluation, and over a constant beyond that. The plain quotient stands still
where the equilibrium is zero, and looks small where the iterates explode. For that reason a relative residual within
the tolerance is no convergence where the image has grown far beyond the first evaluation and ‖g‖ itself has not fallen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..equilibrium import SolveStats, Status
from ._window import look
from .base import WINDOW, AbstractLinearSolver, AbstractSolver, Prefix

CHECK_EVERY = 4
"""Number of evaluations from one question to the next on accelerators, where each makes the host wait."""
RUNNING = -1
"""Status of a row that is not finished."""
_GROWN = 30.0
"""Growth of the image over the first evaluation from which on a small relative residual alone means nothing."""
_FALLEN = 1 / 3
"""What ‖g‖ must then have fallen to, as a part of its first value."""


class Seen(NamedTuple):
    """What is measured of one evaluation of some rows."""

    measures: Tensor
    """(2, rows) merits and relative residuals."""
    norm: Tensor | None = None
    """(rows,) ‖g‖."""
    image_norm: Tensor | None = None
    """(rows,) ‖f(z)‖, which may overflow where a residual looks small."""
    scale: Scale | None = None

    def are_finite(self) -> Tensor:
        """Return which rows are finite in all that is measured."""
        is_finite = self.measures.isfinite().all(dim=0)
        return is_finite if self.image_norm is None else is_finite & self.image_norm.isfinite()

    def have_diverged(self) -> Tensor | None:
        """Return which rows have grown while their residuals did not fall; None where that is not measured."""
        if self.scale is None or self.norm is None or self.image_norm is None:
            return None
        # Beside a large image, a residual of the first size is lost to rounding.
        norm = torch.add(self.norm, self.image_norm, alpha=torch.finfo(self.norm.dtype).eps)
        return (self.image_norm > _GROWN * self.scale.size) & (norm > _FALLEN * self.scale.first_norm)


class Scale(NamedTuple):
    """The size of each sample's problem, by which its evaluations are measured; taken from the first of them."""

    size: Tensor
    """(rows,) the larger of ‖z‖ and ‖f(z)‖ at the first evaluation."""
    first_norm: Tensor
    """(rows,) ‖g‖ at the first evaluation."""
    least: Tensor
    """(2, rows) least divisor of each measure."""
    most: Tensor

    @classmethod
    def begin(cls, z: Tensor, fz: Tensor, g: Tensor, prefix: Prefix | None = None) -> tuple[Scale, Seen]:
        """Return the scale that the first evaluation sets, and what is measured of that evaluation."""
        z, fz, g = z.detach(), fz.detach(), g.detach()
        norm, image_norm = norms(g, prefix), norms(fz, prefix)
        size = torch.maximum(norms(z, prefix), image_norm)
        limits = torch.finfo(size.dtype)
        scale = cls(
            size=size,
            first_norm=norm,
            # An image that rounding at the size of the start cannot tell from zero is measured as if it were that
            # large. Made on the device: copying numbers there would make the host wait.
            least=torch.stack([size, limits.eps * size]).clamp(min=limits.tiny),
            most=torch.stack([10 * size.clamp(min=limits.tiny), torch.full_like(size, math.inf)]),
        )
        return scale, scale._seen(norm, image_norm, prefix)

    def measure(self, fz: Tensor, g: Tensor, prefix: Prefix | None = None) -> Seen:
        """Return what is measured of an evaluation, without a graph."""
        if torch.is_grad_enabled():
            fz, g = fz.detach(), g.detach()
        return self._seen(norms(g, prefix), norms(fz, prefix), prefix)

    def _seen(self, norm: Tensor, image_norm: Tensor, prefix: Prefix | None) -> Seen:
        measures = norm / image_norm.clamp(self.least, self.most)
        if prefix is not None:
            # A token meets the tolerance once those before it do: what they will not change any more is its own input.
            measures = torch.stack([measures[0], prefix.max(measures[1])])
        return Seen(measures, norm, image_norm, self)

    def select(self, rows: Tensor) -> Scale:
        """Return the scale of the given rows."""
        size, first_norm = (vector.index_select(0, rows) for vector in self[:2])
        return Scale(size, first_norm, *(matrix.index_select(1, rows) for matrix in self[2:]))


def norms(matrix: Tensor, prefix: Prefix | None = None) -> Tensor:
    """Return the norms of rows; of prefixes, where rows are the tokens of causal samples."""
    if prefix is None:
        return torch.linalg.vector_norm(matrix, dim=1)
    return prefix.sum(matrix.square().sum(dim=1)).sqrt()


class Kept(NamedTuple):
    """What is kept of each row."""

    best: Tensor
    """(rows, ...) what is returned: the best point so far, or whatever leads back to it."""
    measures: Tensor
    """(2, rows) its merit and relative residual; infinite for rows that are finished."""
    status: Tensor
    """(rows,) why the row is finished, or `RUNNING`."""
    num_evals: Tensor
    """(rows,) evaluations after which it was."""
    residual: Tensor
    """(rows,) relative residual that it finished with."""
    snapshot: Tensor
    """(2, rows) measures at the last test for stagnation."""
    num_stalled: Tensor
    """(rows,) such tests in a row without progress."""
    num_met: Tensor
    """(rows,) evaluations in a row that met the tolerance."""

    @property
    def is_running(self) -> Tensor:
        """(rows,) rows that are not finished."""
        return self.status == RUNNING

    def select(self, rows: Tensor) -> Kept:
        """Return the given rows."""
        measures, snapshot = (part.index_select(1, rows) for part in (self.measures, self.snapshot))
        others = (self.best, self.status, self.num_evals, self.residual, self.num_stalled, self.num_met)
        best, status, num_evals, residual, *counts = (part.index_select(0, rows) for part in others)
        return Kept(best, measures, status, num_evals, residual, snapshot, *counts)


class Rules(NamedTuple):
    """What decides when a row is done, beside tolerance and budget."""

    patience: int = 1
    """Number of evaluations in a row that must meet the tolerance."""
    max_growth: float = math.inf
    num_quiet_windows: int = 1
    max_stalled_windows: float = 3
    floor: float = 0.0
    """Relative residual below which one window without progress is the rounding limit."""
    keep_last: bool = False
    """Keep the last finite evaluation instead of the best."""

    @classmethod
    def of(cls, solver: AbstractSolver, dim: int, eps: float, *, keep_last: bool = False) -> Rules:
        """Return the rules of a solver for states of a size, evaluated with a precision."""
        return cls(
            patience=solver.patience,
            max_growth=solver.max_growth,
            num_quiet_windows=solver.num_quiet_windows(dim),
            max_stalled_windows=solver.max_stalled_windows,
            floor=100 * eps,
            keep_last=keep_last,
        )


def first_kept(payload: Tensor, residual: Tensor | None = None) -> Kept:
    """Return what is kept before the first evaluation.

    Args:
        payload: What is returned if nothing better comes.
        residual: (rows,) relative residual of that, if it is known.
    """
    if residual is None:
        residual = torch.full(payload.shape[:1], math.inf, dtype=payload.dtype, device=payload.device)
    nothing = torch.zeros_like(residual, dtype=torch.int64)
    measures = residual.expand(2, -1)
    return Kept(payload, measures, torch.full_like(nothing, RUNNING), nothing, residual, measures, nothing, nothing)


def record(
    kept: Kept, rules: Rules, payload: Tensor, seen: Seen, number: int | Tensor, tol: float | Tensor
) -> tuple[Kept, Tensor | None]:
    """Take in one evaluation; return what is kept now, and which rows have grown beyond what the rules allow."""
    measures, is_finite, is_running = seen.measures, seen.are_finite(), kept.is_running
    is_met, num_met = measures[1] <= tol, kept.num_met
    if rules.patience > 1:
        num_met = torch.where(is_met, num_met + 1, 0)
        is_met = num_met >= rules.patience
    is_converged = is_met & is_finite
    has_diverged = seen.have_diverged()
    if has_diverged is not None:
        is_converged = is_converged & ~has_diverged
    is_better = is_finite if rules.keep_last else measures[0] <= kept.measures[0]
    # What meets the tolerance is returned, whatever came before.
    is_better = (is_converged | is_better) & is_finite & is_running
    rejected = None if rules.max_growth == math.inf else measures[0] > rules.max_growth * kept.measures[0]
    kept = keep(kept, payload, measures, is_better)._replace(num_met=num_met)
    kept = finish(kept, is_converged, Status.CONVERGED, number)
    return finish(kept, ~is_finite, Status.NON_FINITE, number), rejected


def keep(kept: Kept, payload: Tensor, measures: Tensor, is_better: Tensor) -> Kept:
    """Return what is kept once some rows have something better."""
    return kept._replace(
        best=torch.where(is_better.unsqueeze(1), payload, kept.best),
        measures=torch.where(is_better, measures, kept.measures),
    )


def finish(kept: Kept, rows: Tensor, status: Status | Tensor, number: int | Tensor) -> Kept:
    """Return what is kept once the rows where a mask holds are finished, as far as they were running."""
    rows = rows & kept.is_running
    return kept._replace(
        status=torch.where(rows, status if isinstance(status, Tensor) else int(status), kept.status),
        num_evals=torch.where(rows, number, kept.num_evals),
        residual=torch.where(rows, kept.measures[1], kept.residual),
        # Nothing more happens to these rows.
        measures=torch.where(rows, math.inf, kept.measures),
    )


def check_stagnation(
    kept: Kept, rules: Rules, recent: Tensor, number: int | Tensor, has_diverged: Tensor | None
) -> Kept:
    """End rows that made no progress, given the (rows,) least residuals since the last test.

    Progress by either measure counts: on the way through a hump the residual may fall while ‖g‖ grows.
    """
    latest = torch.stack([kept.measures[0], recent.minimum(kept.snapshot[1])])
    is_stalled = (latest > 0.999 * kept.snapshot).all(dim=0)
    num_stalled = torch.where(is_stalled, kept.num_stalled + 1, 0)
    limit = torch.where(kept.measures[1] < rules.floor, 1, rules.max_stalled_windows)
    kept = kept._replace(snapshot=latest, num_stalled=num_stalled)
    is_over = num_stalled >= rules.num_quiet_windows * limit
    if has_diverged is not None:
        kept = finish(kept, is_over & has_diverged, Status.DIVERGED, number)
    return finish(kept, is_over, Status.STAGNATED, number)


class Progress:
    """Bookkeeping of one solve on the host: how far it is, which rows are left, and whether to go on.

    A finished row stays with the others until `wants_selection` asks to drop it.

    Args:
        payload: What is kept of each row before its first evaluation. Of later ones the best is kept: its point, or
            whatever leads back to it, such as the number of products with which a Krylov method had its least residual.
        solver: Solver whose budget and tolerance apply.
        rules: What else decides when a row is done.
        residual: (B,) relative residual before the first evaluation, or None if that is not known yet.
        may_ask: Whether to look at every evaluation; by default as the solver's `check_every` and the device say.
    """

    def __init__(
        self,
        payload: Tensor,
        solver: AbstractLinearSolver,
        rules: Rules,
        *,
        residual: Tensor | None = None,
        may_ask: bool | None = None,
    ) -> None:
        is_host = payload.device.type == "cpu"
        check_every = solver.check_every or (1 if is_host else CHECK_EVERY)
        self.may_ask = check_every == 1 and (is_host or solver.tol > 0) if may_ask is None else may_ask
        # What is beyond the largest number of the dtype accepts all that is finite, as that number does.
        self.tol = min(solver.tol, torch.finfo(payload.dtype).max)
        if getattr(solver, "returns_image", False):
            # A loop goes on at a state that stands still, as its block may know the step.
            self.tol = -1.0
        self._check_every = check_every if solver.tol > 0 else solver.max_evals
        self._max_evals, self.rules = solver.max_evals, rules
        self.num_evals = 0
        self.goes_on = True
        """Whether there is budget left and, as far as is known, a row to spend it on."""
        self.rejected: Tensor | None = None
        """Current rows whose merit grew beyond what the rules allow; None if it is known that there are none."""
        self.wants_selection = False
        """Whether enough rows have finished for dropping them to pay off."""
        self.has_finished = not self.may_ask
        """Whether some current row may be finished."""
        self.kept = first_kept(payload, residual)
        self._seen: Seen | None = None
        self._has_diverged: Tensor | None = None
        self._rows: Tensor | None = None
        self._whole: tuple[Tensor, ...] = ()
        self._trace: list[tuple[Tensor, Tensor | None]] = []
        self._window: list[Tensor] = []
        if self.may_ask:
            # Nothing happens as long as every row improves and has not converged: by a positive slack of
            # (kept merit - merit, residual - tol), which no row has that is not finite. Made at once, and without
            # broadcasting later, as each small kernel of a solve shows next to a small f.
            table = self.kept.residual.new_tensor([[-1.0, 1.0], [math.inf, -self.tol]])
            self._sign, self._limit = table.unsqueeze(2).expand(-1, -1, payload.shape[0]).contiguous().unbind()
            self._offset = self._limit
        if residual is not None:
            self.kept = finish(self.kept, residual <= self.tol, Status.CONVERGED, 0)
            if self.may_ask:
                self._count()

    def record(self, payload: Tensor, seen: Seen) -> None:
        """Take in one evaluation of the current rows."""
        self.num_evals += 1
        self.rejected, self._seen = None, seen
        measures, kept, rules = seen.measures, self.kept, self.rules
        self._trace.append((measures, self._rows))
        happened = not self.may_ask
        if self.may_ask and rules.patience == 1:
            slack = torch.addcmul(self._offset, measures, self._sign)
            if look(slack.min()) > 0:
                if self.has_finished:
                    self.kept = keep(kept, payload, measures, kept.is_running)
                else:
                    self.kept = kept._replace(best=payload, measures=measures)
            else:
                # The least of all rows, which is NaN or infinite where some row is not finite.
                merit_slack, residual_slack = look(slack.amin(dim=1))
                happened = not (merit_slack > -math.inf and residual_slack > 0)
                if not happened:
                    is_better = measures[0].isfinite() if rules.keep_last else measures[0] <= kept.measures[0]
                    if rules.max_growth != math.inf:
                        self._reject(measures[0] > rules.max_growth * kept.measures[0])
                    if self.has_finished:
                        is_better = is_better & kept.is_running
                    self.kept = keep(kept, payload, measures, is_better)
        else:
            happened = True
        if happened:
            self.kept, rejected = record(kept, rules, payload, seen, self.num_evals, self.tol)
            if rejected is not None:
                self._reject(rejected)
        if self.tol > 0:
            self._window.append(measures[1])
            if len(self._window) == WINDOW:
                recent = torch.stack(self._window).amin(dim=0)
                has_diverged = seen.have_diverged()
                self.kept = check_stagnation(self.kept, rules, recent, self.num_evals, has_diverged)
                self._window = []
                happened = True
        self._decide(happened)

    def _reject(self, rejected: Tensor) -> None:
        # Handed on only if it says something, as a step has to do much about it.
        self.rejected = rejected if not self.may_ask or look(rejected.any()) else None

    def _decide(self, happened: bool) -> None:
        """Find out whether to go on."""
        self.goes_on, is_due = self.num_evals < self._max_evals, self.num_evals % self._check_every == 0
        if self.may_ask:
            if happened:
                self._count()
            self._offset = torch.minimum(self.kept.measures, self._limit)
        elif self.goes_on and is_due:
            self._count()

    def _count(self) -> None:
        """Ask how many rows are left."""
        status = self.kept.status
        # A failed row costs its neighbors nothing, and does not change when they are compacted.
        is_leaving = (status != RUNNING) & (status != Status.NON_FINITE)
        running, leaving = look(torch.stack([(status == RUNNING).sum(), is_leaving.sum()]))
        self.goes_on = self.goes_on and running > 0
        self.has_finished = not self.may_ask or running < len(status)
        self.wants_selection = leaving > 0 and 4 * leaving >= len(status)
        if self.may_ask and self.has_finished:
            self._limit = torch.where(self.kept.is_running, self._limit, math.inf)

    def select(self) -> Tensor:
        """Drop finished rows and return the index of those that stay."""
        rows = self.kept.is_running.nonzero()[:, 0]
        self._whole = self._merged()
        self.kept = self.kept.select(rows)
        self._window = [residuals.index_select(0, rows) for residuals in self._window]
        if self.rejected is not None:
            self.rejected = self.rejected.index_select(0, rows)
        if self.may_ask:
            self._sign, self._limit, self._offset = (
                matrix.index_select(1, rows) for matrix in (self._sign, self._limit, self._offset)
            )
        self._rows = rows if self._rows is None else self._rows.index_select(0, rows)
        self.has_finished, self.wants_selection = not self.may_ask, False
        return rows

    def advance(self, kept: Kept, residuals: Tensor, has_diverged: Tensor | None) -> None:
        """Take in evaluations that were recorded elsewhere.

        Args:
            kept: What is kept after them.
            residuals: (evaluations, rows) their relative residuals.
            has_diverged: (rows,) which rows have diverged at the last of them.
        """
        self.kept, self._has_diverged = kept, has_diverged
        self._trace += [(residual.expand(2, -1), self._rows) for residual in residuals.unbind()]
        self.num_evals += len(residuals)
        self.goes_on = self.num_evals < self._max_evals
        if self.goes_on and self.tol > 0:
            self._count()

    def _merged(self) -> tuple[Tensor, ...]:
        """Return payload, residual, number of evaluations and status of the whole batch."""
        kept = self.kept
        residual = torch.where(kept.is_running, kept.measures[1], kept.residual)
        current = kept.best, residual, kept.num_evals, kept.status
        if self._rows is None:
            return current
        pairs = zip(self._whole, current, strict=True)
        return tuple(whole.index_copy(0, self._rows, part) for whole, part in pairs)

    def payloads(self) -> Tensor:
        """Return what is kept of every sample's best evaluation so far, finished or not."""
        return self.kept.best if self._rows is None else self._merged()[0]

    def residuals(self) -> Tensor:
        """Return the relative residual of every sample's best evaluation so far."""
        return self._merged()[1]

    def result(self) -> SolveStats:
        """Return how the solve went."""
        has_diverged = self._has_diverged
        if has_diverged is None and self._seen is not None:
            has_diverged = self._seen.have_diverged()
        ended: Status | Tensor = Status.MAX_EVALS
        if has_diverged is not None:
            ended = torch.where(has_diverged, int(Status.DIVERGED), int(Status.MAX_EVALS))
        self.kept = finish(self.kept, self.kept.is_running, ended, self.num_evals)
        _, residual, num_evals, status = self._merged()
        # Evaluations that were made before somebody asked, when all rows were finished, are nobody's.
        lines = self._trace[: int(num_evals.max())] if not self.may_ask and self.tol > 0 else self._trace
        return SolveStats(
            residual=residual,
            num_evals=num_evals,
            status=status,
            trace=_assemble_trace(lines, residual, num_evals),
        )


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
