"""The Jacobian's Frobenius norm: the penalty of the paper, and an estimate with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .linearization import Linearization
from .precision import under_autocast, without_autocast
from .solvers.base import check_choice, check_count
from .state import Layout, check_inputs, map_tensors
from .transforms import outside_of_graphs

Probe = Literal["rademacher", "gaussian", "sphere"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """An estimated quantity of each sample, with its error."""

    value: Tensor
    """(B,) estimates."""
    error: Tensor
    """(B,) how far off they may be; what that means is said by the function that made the estimate."""
    num_products: int
    """Products with the Jacobian or its transpose that were spent."""

    def mean_error(self) -> tuple[float | None, float]:
        """Return the mean error over the samples where it is finite, if there are any, and the share of the others."""
        known = self.error[self.error.isfinite()]
        return float(known.mean()) if known.numel() else None, 1 - known.numel() / self.error.numel()


@outside_of_graphs
def jacobian_penalty(
    f: Callable[..., Any],
    z: Any,
    *inputs: Any,
    num_probes: int = 1,
    probe: Probe = "rademacher",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimate the mean over the batch of ‖J‖²_F / d, differentiably (Eq. 4).

    Each probe e costs one vector-Jacobian product: E ‖eᵀJ‖² = ‖J‖²_F (Hutchinson). The gradient reaches the parameters
    of f, with z held constant as in the paper; f is evaluated anew, so whatever made z is not touched.

    Args:
        f: The cell, called as f(z, *inputs).
        z: The equilibrium, a tensor or a nested structure of them.
        *inputs: What f takes after the state.
        num_probes: M of the paper; one is about 1% accurate for a usual batch.
        probe: Distribution of the probes. "gaussian" is the paper's; "rademacher" never has more variance.
        generator: Source of randomness.

    Returns:
        A scalar.

    Example:
        >>> W = torch.diag(torch.tensor([0.5, 2.0])).requires_grad_()
        >>> jacobian_penalty(lambda z: z @ W.T, torch.zeros(3, 2))  # (0.25 + 4) / 2, exact for a diagonal Jacobian
        tensor(2.1250, grad_fn=<DivBackward0>)
    """
    point, layout = linearize(f, z, inputs)
    probes = Probes(point.fz, num_probes, probe, generator)
    create_graph = torch.is_grad_enabled()
    total = point.fz.new_zeros(())
    with without_autocast(layout):
        for _ in range(num_probes):
            total = total + point.vjp(probes.draw(), create_graph=create_graph).square().sum()
    return total / (num_probes * layout.batch_size * layout.dim)


@outside_of_graphs
def frobenius_norm(
    f: Callable[..., Any],
    z: Any,
    *inputs: Any,
    num_probes: int = 16,
    probe: Probe = "rademacher",
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate ‖J‖_F of every sample at z.

    Args:
        f: The cell, called as f(z, *inputs).
        z: The point, a tensor or a nested structure of them.
        *inputs: What f takes after the state.
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
        >>> frobenius_norm(lambda z: z @ W.T, torch.zeros(1, 2)).value
        tensor([5.])
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}; it must be between 0 and 1.")
    point, layout = linearize(f, z, inputs)
    probes = Probes(point.fz, num_probes, probe, generator)
    with torch.no_grad(), without_autocast(layout):
        scaled = ScaledJacobian(point)
        squares = torch.stack([scaled.vjp(probes.draw()).square().sum(dim=1) for _ in range(num_probes)])
        value = squares.mean(dim=0).sqrt()
        error = value * _relative_half_width(squares, confidence)
        return scaled.estimate(value, error.nan_to_num(math.inf, math.inf), num_probes)


def linearize(f: Callable[..., Any], z: Any, inputs: tuple[Any, ...]) -> tuple[Linearization, Layout]:
    """Return f around a constant point, and how its state lies in a matrix."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "The Jacobian cannot be looked at under torch.inference_mode(); use torch.no_grad() instead."
        )
    layout = Layout(z)
    check_inputs(inputs, layout.batch_size)
    matrix = layout.pack(map_tensors(torch.Tensor.detach, z))
    return Linearization(under_autocast(f, layout), matrix, inputs, layout), layout


class ScaledJacobian:
    """Products with J / scale and its transpose, whose squares neither over- nor underflow."""

    def __init__(self, point: Linearization) -> None:
        self._point = point
        self.scale: Tensor | None = None
        """(B,) largest entries of the first product."""

    def vjp(self, u: Tensor) -> Tensor:
        """Return Jᵀu / scale."""
        return self._scaled(self._point.vjp(u))

    def jvp(self, v: Tensor) -> Tensor:
        """Return J v / scale."""
        return self._scaled(self._point.jvp(v))

    def estimate(self, value: Tensor, error: Tensor, num_products: int) -> Estimate:
        """Return what was found out about J / scale for J."""
        assert self.scale is not None
        return Estimate(value=value * self.scale, error=error * self.scale, num_products=num_products)

    def _scaled(self, image: Tensor) -> Tensor:
        if self.scale is None:
            largest = image.abs().amax(dim=1)
            self.scale = torch.where((largest > 0) & largest.isfinite(), largest, 1)
        return image / self.scale[:, None]


class Probes:
    """Random (B, D) matrices with rows of mean zero and covariance I."""

    def __init__(self, like: Tensor, num_probes: int, probe: Probe, generator: torch.Generator | None) -> None:
        check_count("num_probes", num_probes)
        check_choice("probe", probe, get_args(Probe))
        self._like, self._probe, self._generator = like.detach(), probe, generator

    def draw(self) -> Tensor:
        """Return one of them."""
        # A generator lives on one device; what it draws moves to the state's.
        device = self._like.device if self._generator is None else self._generator.device
        sample = torch.empty_like(self._like, device=device)
        if self._probe == "rademacher":
            sample.bernoulli_(0.5, generator=self._generator).mul_(2).sub_(1)
        else:
            sample.normal_(generator=self._generator)
        if self._probe == "sphere":
            sample *= math.sqrt(sample.shape[1]) / torch.linalg.vector_norm(sample, dim=1, keepdim=True)
        return sample.to(self._like.device)


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
