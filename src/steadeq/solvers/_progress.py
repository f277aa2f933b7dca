"""What is kept of each sample, and when it is done: decided here for every kind of solve.

`Kept.record` takes in one evaluation by masks on the device, without a host sync: compiled and exported solves, and
those on accelerators, use it as it is. `Progress` reads one number on the host before it where that costs nothing: as
long as no sample finishes, which is the common case, there is little to do.

Two measures are taken of each evaluation, with g = f(z) - z. A sample stops by its relative residual ‖g‖ / ‖f(z)‖.
Which iterate is the best, and whether a step made things worse, is judged by its merit: ‖g‖ over ‖f(z)‖ too, as long as
the latter is of the size of the first evaluation, and over a constant beyond that. The plain quotient stands still
where the equilibrium is zero, and looks small where the iterates explode. For that reason a relative residual within
the tolerance is no convergence where the image has grown far beyond the first evaluation and ‖g‖ has hardly fallen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..equilibrium import SolveStats, Status
from ._window import to_host
from .base import WINDOW, AbstractLinearSolver, Prefix

CHECK_EVERY = 4
"""Number of evaluations from one host sync to the next on accelerators."""
RUNNING = -1
"""Status of a row that is not finished."""
_GROWN = 30.0
"""Growth of the image over the first evaluation from which on a small relative residual alone means nothing."""
_FALLEN = 0.1
"""What ‖g‖ must then have fallen to, as a part of its first value."""


class Scale(NamedTuple):
    """The size of each sample's problem, by which its evaluations are measured; taken from the first of them."""

    first_norm: Tensor
    """(rows,) ‖g‖ at the first evaluation."""
    least: Tensor
    """(2, rows) least divisor of each measure; for the merit it is the larger of the first ‖z‖ and ‖f(z)‖."""
    most: Tensor

    @classmethod
    def of(cls, size: Tensor, norm: Tensor) -> Scale:
        """Return the scale that is set by the larger of the first ‖z‖ and ‖f(z)‖, and the first ‖g‖."""
        limits = torch.finfo(size.dtype)
        # An image that rounding at the size of the start cannot tell from zero is measured as if it were that large.
        least = torch.stack([size, limits.eps * size]).clamp(min=limits.tiny)
        # Made on the device: copying numbers there would make the host wait.
        return cls(norm, least, torch.stack([10 * least[0], torch.full_like(size, math.inf)]))

    def measure(self, norm: Tensor, image_norm: Tensor, prefix: Prefix | None) -> Seen:
        """Return what the (rows,) norms ‖g‖ and ‖f(z)‖ of an evaluation say."""
        measures = norm / image_norm.clamp(self.least, self.most)
        if prefix is not None:
            # A token meets the tolerance once those before it do: what they will not change any more is its own input.
            measures = torch.stack([measures[0], prefix.max(measures[1])])
        return Seen(measures, norm, image_norm, self)


class Seen(NamedTuple):
    """What is measured of one evaluation of some rows."""

    measures: Tensor
    """(2, rows) merits and relative residuals."""
    norm: Tensor
    """(rows,) ‖g‖."""
    image_norm: Tensor
    """(rows,) ‖f(z)‖, which may overflow where a residual looks small."""
    scale: Scale

    def are_finite(self) -> Tensor:
        """Return which rows are finite in all that is measured."""
        return self.measures.isfinite().all(dim=0) & self.image_norm.isfinite()

    def have_grown(self) -> Tensor:
        """Return whose images have grown far beyond the first one."""
        return self.image_norm > _GROWN * self.scale.least[0]

    def have_run_away(self) -> Tensor:
        """Return which rows have grown so far that a small residual means nothing."""
        is_large = torch.maximum(self.norm / _FALLEN, _lost_beside(self.image_norm)) > self.scale.first_norm
        return self.have_grown() & is_large

    def have_diverged(self, number: int | Tensor) -> Tensor:
        """Return which rows have run away for good, given the number of evaluations.

        Their residuals have not fallen at all, or they went further than plain iteration would have come. Others may
        be on the long way of a map that contracts slowly.
        """
        first_norm, first_size = self.scale.first_norm, self.scale.least[0]
        is_as_large = self.norm + _lost_beside(self.image_norm) > first_norm
        return self.have_run_away() & (is_as_large | (self.image_norm > first_size + 2 * number * first_norm))


def _lost_beside(image_norm: Tensor) -> Tensor:
    """Return the norms of residuals that are rounding beside such images."""
    return 3 * torch.finfo(image_norm.dtype).eps * image_norm


def norms(matrix: Tensor, prefix: Prefix | None = None) -> Tensor:
    """Return the norms of rows, without a graph; of prefixes, where rows are the tokens of causal samples."""
    matrix = matrix.detach() if torch.is_grad_enabled() else matrix
    if prefix is None:
        return torch.linalg.vector_norm(matrix, dim=1)
    return prefix.sum(matrix.square().sum(dim=1)).sqrt()


class Rules(NamedTuple):
    """What decides when a row is done, beside tolerance and budget; see `AbstractSolver` for what is named as there."""

    patience: int
    max_growth: float
    num_quiet_windows: int
    max_stalled_windows: float
    floor: float
    """Relative residual below which one window without progress is the rounding limit."""
    keep_last: bool
    """Keep the last finite evaluation instead of the best."""


class Kept(NamedTuple):
    """What is kept of each row, which is the first dim of the first field and the last one of all others."""

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

    @classmethod
    def of(cls, payload: Tensor, residual: Tensor | None) -> Kept:
        """Return what is kept before the first evaluation, of a relative residual if that is known."""
        if residual is None:
            residual = torch.full(payload.shape[:1], math.inf, dtype=payload.dtype, device=payload.device)
        nothing, measures = torch.zeros_like(residual, dtype=torch.int64), residual.expand(2, -1)
        return cls(payload, measures, torch.full_like(nothing, RUNNING), nothing, residual, measures, nothing, nothing)

    @property
    def is_running(self) -> Tensor:
        """(rows,) rows that are not finished."""
        return self.status == RUNNING

    def select(self, rows: Tensor) -> Kept:
        """Return the given rows."""
        return Kept(self.best.index_select(0, rows), *(part.index_select(-1, rows) for part in self[1:]))

    def put(self, rows: Tensor, some: Kept) -> Kept:
        """Return all rows, of which the given ones are as in `some`."""
        pairs = zip(self[1:], some[1:], strict=True)
        return Kept(self.best.index_copy(0, rows, some.best), *(old.index_copy(-1, rows, new) for old, new in pairs))

    def keep(self, payload: Tensor, measures: Tensor, is_better: Tensor) -> Kept:
        """Return what is kept once some rows have something better."""
        best = torch.where(is_better.unsqueeze(1), payload, self.best)
        return Kept(best, torch.where(is_better, measures, self.measures), *self[2:])

    def finish(self, rows: Tensor, status: Tensor | int, number: int | Tensor) -> Kept:
        """Return what is kept once the rows where a mask holds are finished, as far as they were running."""
        rows = rows & self.is_running
        return self._replace(
            status=torch.where(rows, status, self.status),
            num_evals=torch.where(rows, number, self.num_evals),
            residual=torch.where(rows, self.measures[1], self.residual),
            # Nothing more happens to these rows.
            measures=torch.where(rows, math.inf, self.measures),
        )

    def record(
        self, rules: Rules, payload: Tensor, seen: Seen, number: int | Tensor, tol: float | Tensor
    ) -> tuple[Kept, Tensor | None]:
        """Take in one evaluation; return what is kept now, and which rows have grown beyond what the rules allow."""
        measures, is_finite = seen.measures, seen.are_finite()
        is_met, num_met = measures[1] <= tol, self.num_met
        if rules.patience > 1:
            num_met = torch.where(is_met, num_met + 1, 0)
            is_met = num_met >= rules.patience
        is_converged = is_met & is_finite & ~seen.have_run_away()
        is_better = is_finite if rules.keep_last else measures[0] <= self.measures[0]
        # What meets the tolerance is returned, whatever came before.
        is_better = (is_converged | is_better) & is_finite & self.is_running
        rejected = None if rules.max_growth == math.inf else measures[0] > rules.max_growth * self.measures[0]
        kept = self.keep(payload, measures, is_better)._replace(num_met=num_met)
        kept = kept.finish(is_converged, int(Status.CONVERGED), number)
        return kept.finish(~is_finite, int(Status.NON_FINITE), number), rejected

    def check_stagnation(
        self, rules: Rules, recent: Tensor, seen: Seen, number: int | Tensor, *, may_sync: bool
    ) -> Kept:
        """End rows that made no progress, given the (rows,) least residuals since the last test.

        Progress by either measure counts: on the way through a hump the residual may fall while ‖g‖ grows.
        """
        latest = torch.stack([self.measures[0], recent.minimum(self.snapshot[1])])
        is_stalled = (latest > 0.999 * self.snapshot).all(dim=0)
        if may_sync and not to_host(is_stalled.any()):
            return self._replace(snapshot=latest, num_stalled=torch.zeros_like(self.num_stalled))
        num_stalled = torch.where(is_stalled, self.num_stalled + 1, 0)
        limit = torch.where(self.measures[1] < rules.floor, 1, rules.max_stalled_windows)
        kept = self._replace(snapshot=latest, num_stalled=num_stalled)
        is_over = num_stalled >= rules.num_quiet_windows * limit
        kept = kept.finish(is_over & seen.have_diverged(number), int(Status.DIVERGED), number)
        return kept.finish(is_over, int(Status.STAGNATED), number)


class Progress:
    """Bookkeeping of one solve on the host: how far it is, which rows are left, and whether to go on.

    A finished row stays with the others until `wants_selection` asks to drop it.

    Args:
        payload: What is kept of each row before its first evaluation: a point, or whatever leads back to it, such as
            the number of products with which a Krylov method had its least residual.
        solver: Solver whose budget, tolerance and rules apply.
        dim: Number of elements of a state.
        eps: Precision with which the map is evaluated.
        keep_last: Keep the last finite evaluation instead of the best.
        residual: (B,) relative residual before the first evaluation, or None if that is not known yet.
        prefix: Sums over prefixes, in a causal solve.
        may_sync: Whether to read numbers on the host at every evaluation; None: as `check_every` and the device say.
    """

    def __init__(
        self,
        payload: Tensor,
        solver: AbstractLinearSolver,
        *,
        dim: int,
        eps: float,
        keep_last: bool = False,
        residual: Tensor | None = None,
        prefix: Prefix | None = None,
        may_sync: bool | None = None,
    ) -> None:
        is_host = payload.device.type == "cpu"
        check_every = solver.check_every or (1 if is_host else CHECK_EVERY)
        self.may_sync = check_every == 1 and (is_host or solver.tol > 0) if may_sync is None else may_sync
        # A loop goes on at a state that stands still, as its block may know the step. What is beyond the largest number
        # of the dtype accepts all that is finite, as that number does.
        self.tol = -1.0 if solver.returns_image else min(solver.tol, torch.finfo(payload.dtype).max)
        self._check_every = check_every if solver.tol > 0 else solver.max_evals
        self.solver, self.prefix = solver, prefix
        growth, quiet, stalled = solver.max_growth, solver.num_quiet_windows(dim), solver.max_stalled_windows
        self.rules = Rules(solver.patience, growth, quiet, stalled, 100 * eps, keep_last or solver.returns_image)
        self.num_evals = 0
        self.goes_on = True
        """Whether there is budget left and, as far as is known, a row to spend it on."""
        self.rejected: Tensor | None = None
        """Current rows whose merit grew beyond what the rules allow; None if it is known that there are none."""
        self.wants_selection = False
        """Whether enough rows have finished for dropping them to pay off."""
        self.has_finished = not self.may_sync
        """Whether some current row may be finished."""
        self.kept = Kept.of(payload, residual)
        self.scale: Scale | None = None
        """The size of each current row's problem, once there was an evaluation."""
        self._has_running, self._is_staggered = True, False
        self._seen: Seen | None = None
        self._rows: Tensor | None = None
        self._whole = self.kept
        self._trace: list[Tensor] = []
        if self.may_sync:
            # Nothing happens as long as every row improves and has not converged: by a positive slack of
            # (kept merit - merit, residual - tol), which no row has that is not finite.
            self._sign, self._limit = self.kept.residual.new_tensor([[[-1.0], [1.0]], [[math.inf], [-self.tol]]])
        if residual is not None:
            self.kept = self.kept.finish(residual <= self.tol, int(Status.CONVERGED), 0)
            if self.may_sync:
                self._count()

    def measure(self, z: Tensor, fz: Tensor, g: Tensor) -> Seen:
        """Measure an evaluation of the current rows, of which the first sets the scale."""
        prefix = self.prefix
        norm, image_norm = norms(g, prefix), norms(fz, prefix)
        if self.scale is None:
            self.scale = Scale.of(torch.maximum(norms(z, prefix), image_norm), norm)
        return self.scale.measure(norm, image_norm, prefix)

    def record(self, payload: Tensor, seen: Seen) -> None:
        """Take in one evaluation of the current rows."""
        self.num_evals += 1
        self.rejected, self._seen = None, seen
        measures, kept, rules = seen.measures, self.kept, self.rules
        self._trace.append(measures if self._rows is None else self._trace[-1].index_copy(1, self._rows, measures))
        happened, rejected = True, None
        if self.may_sync and rules.patience == 1:
            # The least of all rows, which is NaN or infinite where some row is not finite.
            slack = torch.addcmul(torch.minimum(kept.measures, self._limit), measures, self._sign)
            merit_slack, residual_slack = to_host(slack.amin(dim=1))
            happened = not (merit_slack > -math.inf and residual_slack > 0)
            if not happened and (merit_slack > 0 or rules.keep_last) and not self.has_finished:
                self.kept = Kept(payload, measures, *kept[2:])
            elif not happened:
                is_better = kept.is_running if rules.keep_last else measures[0] <= kept.measures[0]
                self.kept = kept.keep(payload, measures, is_better & kept.is_running)
            if not happened and merit_slack <= 0 and rules.max_growth != math.inf:
                rejected = measures[0] > rules.max_growth * kept.measures[0]
        if happened:
            self.kept, rejected = kept.record(rules, payload, seen, self.num_evals, self.tol)
        # Handed on only if it says something, as a step has to do much about it.
        if rejected is not None and (not self.may_sync or to_host(rejected.any())):
            self.rejected = rejected
        if self.tol > 0 and self.num_evals % WINDOW == 0:
            recent = torch.stack(self._trace[-WINDOW:])[:, 1].amin(dim=0)
            recent = recent if self._rows is None else recent.index_select(0, self._rows)
            self.kept = self.kept.check_stagnation(rules, recent, seen, self.num_evals, may_sync=self.may_sync)
            happened = True
        self.goes_on = self.num_evals < self.solver.max_evals
        if happened if self.may_sync else self.goes_on and self.num_evals % self._check_every == 0:
            self._count()

    def _count(self) -> None:
        """Ask how many rows are left."""
        statuses = to_host(self.kept.status)
        num_running = statuses.count(RUNNING)
        # A failed row costs its neighbors nothing, and does not change when they are compacted.
        num_leaving = len(statuses) - num_running - statuses.count(Status.NON_FINITE)
        self._has_running = num_running > 0
        self.goes_on = self.goes_on and self._has_running
        self._is_staggered |= self.goes_on and num_running < len(statuses)
        self.has_finished = not self.may_sync or num_running < len(statuses)
        self.wants_selection = num_leaving > 0 and 4 * num_leaving >= len(statuses)
        if self.may_sync and self.has_finished:
            self._limit = torch.where(self.kept.is_running, self._limit, math.inf)

    def select(self) -> Tensor:
        """Drop finished rows and return the index of those that stay."""
        rows = self.kept.is_running.nonzero()[:, 0]
        self._whole = self._merged()
        self.kept = self.kept.select(rows)
        if self.scale is not None:
            self.scale = Scale(*(part.index_select(-1, rows) for part in self.scale))
        if self.rejected is not None:
            self.rejected = self.rejected.index_select(0, rows)
        if self.may_sync:
            self._limit = self._limit.index_select(1, rows)
        self._rows = rows if self._rows is None else self._rows.index_select(0, rows)
        self.has_finished, self.wants_selection = not self.may_sync, False
        return rows

    def advance(self, kept: Kept, residuals: Tensor, seen: Seen) -> None:
        """Take in evaluations recorded elsewhere: their (evaluations, rows) relative residuals, and the last one."""
        self.kept, self._seen = kept, seen
        self._trace += [residual.expand(2, -1) for residual in residuals.unbind()]
        self.num_evals += len(residuals)
        self.goes_on = self.num_evals < self.solver.max_evals
        if self.goes_on and self.tol > 0:
            self._count()

    def _merged(self) -> Kept:
        """Return what is kept of the whole batch."""
        return self.kept if self._rows is None else self._whole.put(self._rows, self.kept)

    def result(self) -> SolveStats:
        """Return how the solve went, after which `kept` has all samples."""
        seen, number = self._seen, self.num_evals
        if self._has_running and seen is not None:
            if not self.may_sync or to_host(seen.have_grown().any()):
                self.kept = self.kept.finish(seen.have_diverged(number), int(Status.DIVERGED), number)
            self.kept = self.kept.finish(self.kept.is_running, int(Status.MAX_EVALS), number)
        is_uneven, trace = self.has_finished or self._rows is not None, self._trace
        kept = self.kept = self._merged()
        if not self.may_sync and self.tol > 0:
            # Evaluations that were made before somebody asked, when all rows were finished, are nobody's.
            least, most = to_host(torch.stack(kept.num_evals.aminmax()))
            trace, self._is_staggered = trace[:most], least < most
        residuals = torch.stack(trace)[:, 1] if trace else kept.residual.new_zeros(0, len(kept.residual))
        if is_uneven:
            # Of finished rows the last evaluation is repeated.
            last = torch.arange(len(trace), device=residuals.device)[:, None].minimum((kept.num_evals - 1).clamp(min=0))
            residuals = residuals.gather(0, last)
        residuals = residuals.nan_to_num(nan=math.inf, posinf=math.inf)
        return SolveStats(
            residual=kept.residual,
            num_evals=kept.num_evals,
            status=kept.status,
            trace=residuals,
            is_staggered=self._is_staggered,
        )
