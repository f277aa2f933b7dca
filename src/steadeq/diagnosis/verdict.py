"""What becomes of a sample that is iterated: told from the sizes of its steps and from its latest states.

Near a fixed point steps shrink, or grow, by a factor each evaluation, so that their logarithm is a straight line. What
has to be told from a slow fall of that kind: steps that shrink ever more slowly (a drift like the harmonic series, or a
cycle that is being approached), rounding, and the ups and downs of complex eigenvalues and of chaos. So the line is
fitted to averages over blocks of evaluations, its slope counts only if it stands out from their scatter, and the slopes
of the first and the second half are compared.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_PERIOD = 16
"""The longest cycle that is looked for."""
NUM_KEPT = 2 * MAX_PERIOD + 1
"""Number of latest states that this takes: every return is seen as often as the longest period has phases."""

_NUM_BLOCKS = 8
_SIGNIFICANT = 6
"""Standard errors from which on a slope counts: one in a thousand by chance, at 8 blocks."""
_STEADY = 0.85
"""Least ratio of the late to the early slope of what falls or grows by a factor; 0.71 for any power of the depth."""
_EXACT = 0.02
"""Largest change of the slope of what falls by one factor."""
_SUMMABLE = 1.2
"""Power of one over the depth from which on steps add up to something finite; 1 and a margin."""
_FALL = 0.01
"""Ratio of steps, or of states, that is more than a trend."""
_ACCUMULATED = 30
"""How many times the rounding error of one step it may become over many."""
_SMOOTH = 0.05
"""Largest scatter of the logarithm of steps around a curve that explains them."""
_RETURN = 0.02
"""Largest distance of a return, in sizes of the cycle."""


class Verdict(enum.IntEnum):
    """What becomes of a sample that is iterated."""

    CONVERGES = 0
    """It approaches a fixed point: each evaluation changes less."""
    CYCLES = 1
    """It returns to where it was every few evaluations."""
    DRIFTS = 2
    """It wanders, or grows slowly, and never settles."""
    DIVERGES = 3
    """It grows without bound, or is no longer finite."""


class Finding(NamedTuple):
    """What was found out about one sample; see the fields of `Diagnosis`."""

    verdict: Verdict
    is_certain: bool
    rate: float
    period: int = 0
    is_transient: bool = False


class _Trend(NamedTuple):
    """A line through the logarithm of step sizes: its slope, standard error, and the slopes of its two halves."""

    slope: float
    error: float
    early: float
    late: float

    def stands_out(self, least: float) -> bool:
        """Return whether the slope is more than scatter, and at least as large as given."""
        return abs(self.slope) > max(_SIGNIFICANT * self.error, least)

    @property
    def is_steady(self) -> bool:
        """Whether steps go on to change by about the same factor."""
        return self.late / self.early >= _STEADY if self.early * self.slope > 0 else self.late * self.slope > 0

    @property
    def is_exact(self) -> bool:
        """Whether steps change by the same factor throughout, up to rounding."""
        return abs(self.late - self.early) <= _EXACT * abs(self.early)


def judge(steps: Tensor, sizes: Tensor, returns: Tensor, *, floor: float, eps: float) -> Finding:
    """Return what becomes of one sample.

    Args:
        steps: (evaluations,) norms ‖f(z) - z‖.
        sizes: (evaluations,) norms ‖f(z)‖.
        returns: (periods, shifts) distances between latest states that are 1, 2, ... evaluations apart.
        floor: Step that rounding alone explains.
        eps: Precision of the evaluations.
    """
    is_finite = steps.isfinite() & sizes.isfinite()
    if not bool(is_finite.all()):
        num_finite = int(is_finite.int().argmin())
        return Finding(Verdict.DIVERGES, True, _rate(steps, num_finite))
    num_evals = len(steps)
    peak, late = int(steps.argmax()), slice(-max(1, num_evals // 8), None)
    # Rounding is as large as the state is: the small steps of what has grown since were not rounding.
    level = float((steps[late] / (sizes[late] / sizes[-1]).clamp(max=1)).nan_to_num(0).median())
    # Rounding errors add up where the map contracts slowly, and may end in a cycle of their own. It is told from others
    # by how small it is, and by how far steps fell before.
    if level <= floor or (level <= _ACCUMULATED * floor and level <= _FALL * float(steps[peak])):
        num_loud = int((steps <= max(floor, 2 * level)).int().argmax())
        return Finding(Verdict.CONVERGES, True, _rate(steps, num_loud))
    middle = num_evals // 2
    # Steps that grew for long before they fell are judged by their fall, if there is enough of it.
    is_late_fall = middle < peak < num_evals - 16 and float(steps[-1]) < 0.1 * float(steps[peak])
    trend = _fit(steps[peak if is_late_fall else middle :])
    rate = math.exp(trend.slope)
    if (lasting := _rate_after_transient(steps)) is not None:
        return Finding(Verdict.CONVERGES, float(steps[-1]) <= _FALL * float(steps[peak]), lasting, is_transient=True)
    # Rounding may change steps by eps each time; and what changes by less than 0.1% in all does not change.
    least = max(eps, 1e-3 / num_evals)
    if trend.stands_out(least):
        # The middle of the late half.
        power = -trend.late * 0.875 * num_evals
        # Where the state still grows with the depth, the limit is much further away than what was seen: then steps have
        # to fall by the very same factor throughout.
        still_grows = float(sizes[-1]) > 1.5 * float(sizes[middle]) and float(steps[-1]) > 0.5 * float(steps[peak])
        is_falling = trend.is_exact if still_grows else trend.is_steady or power > _SUMMABLE
        if trend.slope < 0 and is_falling:
            return Finding(Verdict.CONVERGES, float(steps[-1]) <= _FALL * float(steps[peak]), rate)
        growth = float(sizes[-1].log() - sizes[middle].log())
        # Steps that grow while the state does not may be on their way from one place to another.
        late_growth = float(sizes[-1].log() - sizes[late.start].log())
        is_outward = trend.slope > 0 and (
            growth >= 0.25 * trend.slope * num_evals or late_growth >= 0.5 * trend.slope * -late.start
        )
        if is_outward and (trend.is_steady or growth > math.log(4)):
            return Finding(Verdict.DIVERGES, float(sizes[0]) <= _FALL * float(sizes[-1]), rate)
        if trend.slope > 0 and trend.is_steady:
            return Finding(Verdict.DRIFTS, False, rate)
    for period in range(2, len(returns) + 1):
        distance, amplitude = float(returns[period - 1].max()), float(returns[: period - 1].max())
        if distance <= max(_RETURN * amplitude, floor):
            return Finding(Verdict.CYCLES, distance <= max(0.1 * _RETURN * amplitude, floor), rate, period)
    # Certain if there is no hint of a fall and, even at the edge of the error, it would take all of the evaluations
    # again to fall to a third.
    is_flat = abs(trend.slope) <= max(2 * trend.error, least)
    return Finding(Verdict.DRIFTS, is_flat and abs(trend.slope) + 2 * trend.error < 1 / num_evals, rate)


def _rate(steps: Tensor, num_loud: int) -> float:
    """Return the factor by which steps changed before rounding, or NaN where there were none."""
    if num_loud == 0:
        return math.nan
    if num_loud == 1:
        return float(steps[1] / steps[0]) if len(steps) > 1 else math.nan
    return math.exp(_fit(steps[min(num_loud // 2, num_loud - 2) : num_loud]).slope)


def _rate_after_transient(steps: Tensor) -> float | None:
    """Return the factor by which steps shrink in the end, where they first grow for long and will shrink; else None.

    Powers of a matrix far from normal are powers of its radius times a polynomial, so that the logarithm of steps is
    a + k log n + n log(radius), in which the polynomial wins for long if k is large.
    """
    first = len(steps) // 4
    # Of what falls by a factor already, the trend says all.
    if first < 16 or float(steps[first:].max()) <= 2 * float(steps[first]):
        return None
    every = logs = steps[first:].clamp(min=torch.finfo(steps.dtype).tiny).log()
    n = torch.arange(first + 1, len(steps) + 1, dtype=steps.dtype, device=steps.device)
    # Blocks, as scatter from one step to the next is not independent.
    length = len(n) // (2 * _NUM_BLOCKS)
    logs, n = (values[-2 * _NUM_BLOCKS * length :].view(-1, length).mean(dim=1) for values in (logs, n))
    terms = torch.stack([torch.ones_like(n), n.log(), n], dim=1)
    inverse = torch.linalg.inv(terms.T @ terms)
    _, power, log_rate = (found := inverse @ (terms.T @ logs)).tolist()
    scatter = float((logs - terms @ found).square().sum() / (len(n) - 3))
    _, power_error, rate_error = (inverse.diagonal() * scatter).sqrt().tolist()
    is_known = power > _SIGNIFICANT * power_error and -log_rate > _SIGNIFICANT * rate_error
    # Chaos may look like anything on average, but not from one step to the next.
    is_smooth = scatter < _SMOOTH**2 and float(every.diff().diff().std()) < _SMOOTH
    return math.exp(log_rate) if is_known and is_smooth and power > 0.5 else None


def _fit(steps: Tensor) -> _Trend:
    num_blocks = min(_NUM_BLOCKS, len(steps))
    length = len(steps) // num_blocks
    # Where a step is zero by chance, as small as it gets.
    logs = steps[-num_blocks * length :].clamp(min=torch.finfo(steps.dtype).tiny).log().view(num_blocks, length)
    means = torch.logsumexp(2 * logs, dim=1) / 2
    position = length * torch.arange(num_blocks, dtype=steps.dtype, device=steps.device)
    slope, scatter = _line(position, means)
    if num_blocks < 4:
        return _Trend(slope, math.inf, slope, slope)
    error = scatter / math.sqrt(num_blocks - 2) / float((position - position.mean()).norm())
    half = num_blocks // 2
    return _Trend(slope, error, *(_line(position[part], means[part])[0] for part in (slice(half), slice(half, None))))


def _line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the slope of the line through points, and the norm of what it leaves."""
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    return slope, float((y - slope * x).norm())
