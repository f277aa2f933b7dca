"""The Jacobian's Frobenius norm, with its confidence interval."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._internal.autocast import without_autocast
from .._internal.unsupported import outside_of_graphs
from ..equilibrium import Equilibrium
from ._products import Estimate, Probe, Probes, ScaledJacobian, linearize


@outside_of_graphs
def frobenius_norm(
    eq: Equilibrium,
    *,
    num_probes: int = 16,
    probe: Probe = "rademacher",
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate ‖J‖_F of every sample at the equilibrium.

    Args:
        eq: What `fixed_point` or `layer.solve` returned, or `Equilibrium.at(f, z, *inputs)`.
        num_probes: Vector-Jacobian products to spend; the error falls with their square root.
        probe: Distribution of the probes.
        confidence: Level of the interval value ± error.
        generator: Source of randomness.

    Returns:
        The estimate; value ± error is the confidence interval. Its rate is at least nominal: between 95% and 97% was
        measured for 95%, for J of full rank and of rank 1 to 10, at 2 to 64 probes. Few probes of a J of low rank tell
        little, and the error says so; it may be infinite, as it is for a single probe.

    Example:
        >>> W = torch.diag(torch.tensor([3.0, 4.0]))
        >>> frobenius_norm(Equilibrium.at(lambda z: z @ W.T, torch.zeros(1, 2))).value
        tensor([5.])
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}; it must be between 0 and 1.")
    point = linearize(eq)
    probes = Probes(point.fz, num_probes, probe, generator)
    with torch.no_grad(), without_autocast(point.layout):
        scaled = ScaledJacobian(point)
        squares = torch.stack([scaled.vjp(probes.draw()).square().sum(dim=1) for _ in range(num_probes)])
        value = squares.mean(dim=0).sqrt()
        error = value * _relative_half_width(squares, confidence)
        return scaled.estimate(value, error.nan_to_num(math.inf, math.inf), num_probes)


def _relative_half_width(squares: Tensor, confidence: float) -> Tensor:
    """Return the larger half-width of the interval of the root of a mean, relative to that root.

    The square of an image is a sum of squares: a multiple of chi-square with as many degrees of freedom as J has large
    singular values, at least one. Their number follows from the variance (Satterthwaite), and the quantiles of the mean
    from the cube root, which is nearly normal (Wilson and Hilferty), with Student's quantile for the normal one as the
    variance is estimated.

    Args:
        squares: (num_probes, B) squares.
        confidence: Level of the interval.
    """
    num_probes, mean = squares.shape[0], squares.mean(dim=0)
    if num_probes == 1:
        return torch.full_like(mean, math.inf)
    # The variance of the mean in squares of it is 2 / degrees, and at most 2 / num_probes.
    variance = squares.var(dim=0) / (num_probes * torch.where(mean > 0, mean, 1).square())
    spread = variance.clamp(max=2 / num_probes) / 9
    reach = _student_quantile(0.5 + confidence / 2, num_probes - 1) * spread.sqrt()
    # The upper end is the farther one.
    return (1 - spread - reach).clamp(min=0) ** -1.5 - 1


def _student_quantile(level: float, degrees: int) -> float:
    """Return the quantile of Student's t: exact for 1 and 2 degrees of freedom, else Hill's expansion (within 1%)."""
    if degrees == 1:
        return math.tan(math.pi * (level - 0.5))
    if degrees == 2:
        a = 2 * level - 1
        return a * math.sqrt(2 / (1 - a * a))
    q = float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))
    terms = (
        (q**3 + q) / 4,
        (5 * q**5 + 16 * q**3 + 3 * q) / 96,
        (3 * q**7 + 19 * q**5 + 17 * q**3 - 15 * q) / 384,
    )
    return q + sum(term / degrees ** (order + 1) for order, term in enumerate(terms))
