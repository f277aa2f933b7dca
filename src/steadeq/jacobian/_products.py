"""Products with the Jacobian at an equilibrium, and what estimates are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from .._internal.autocast import state_layout, under_autocast
from .._internal.independence import check_products
from .._internal.linearization import Linearization
from .._internal.trees import check_inputs, map_tensors, select_rows
from .._internal.validation import check_choice, check_count
from ..equilibrium import Equilibrium, Status

Probe = Literal["rademacher", "gaussian", "sphere"]
"""Distribution of the random directions of an estimate: signs, normal numbers, or points of a sphere."""

_ROUNDING = 10
"""Rounding of a norm, in epsilons of it: products and sums of squares are rounded, each about once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """An estimated quantity of each sample, with its error.

    Example:
        >>> print(Estimate(value=torch.tensor([0.5, 0.7]), error=torch.tensor([0.01, torch.inf]), num_products=40))
        0.6 on average over 2 samples, 0.7 at most; error 0.01 on average where it is known, unknown for 1; 40 products
    """

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

    def __str__(self) -> str:
        """Summarize the estimate in one line."""
        error, share = self.mean_error()
        parts = [] if error is None else [f"error {error:.2g} on average" + " where it is known" * (share > 0)]
        if share > 0:
            parts.append(f"{'' if parts else 'error '}unknown for {round(share * self.error.numel())}")
        number = self.value.numel()
        value = f"{float(self.value.mean()):.3g}"
        if number > 1:
            value += f" on average over {number} samples, {float(self.value.max()):.3g} at most"
        return f"{value}; {', '.join(parts)}; {self.num_products} products"


def check_equilibrium(eq: Any) -> None:
    """Refuse what is no equilibrium, such as the map alone.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(eq, Equilibrium):
        raise TypeError(
            f"eq is a {type(eq).__name__}; it must be an Equilibrium. fixed_point(...) and layer.solve(...) return "
            "one; for a state that you computed yourself, use Equilibrium.at(f, z, *inputs)."
        )


def without_lost(eq: Equilibrium) -> Equilibrium:
    """Return the equilibrium of the samples that a penalty can be taken of: those that were not lost to a NaN.

    Derivatives of the others are NaN however they are weighed, so that one of them would cost the whole batch its
    gradient. `eq.stats` counts them. Where all are lost, they stay, as there is nothing else to return.

    Raises:
        TypeError: What is given is no equilibrium.
    """
    check_equilibrium(eq)
    if eq.batch_dims == 0:
        return eq
    if eq.stats is None:
        layout = state_layout(eq.z, eq.batch_dims)
        is_good = layout.pack(map_tensors(Tensor.detach, eq.z)).isfinite().all(dim=1)
    else:
        is_good = eq.stats.status != Status.NON_FINITE
    num_good = int(is_good.sum())
    if num_good in (0, len(is_good)):
        return eq
    rows = is_good.nonzero()[:, 0]
    z, inputs = select_rows((map_tensors(Tensor.detach, eq.z), eq.inputs), rows)
    return Equilibrium.at(eq.f, z, *inputs)


def refuse_inference_mode() -> None:
    """Refuse inference mode, under which nothing can be differentiated.

    Raises:
        RuntimeError: Inference mode is on.
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Products with the Jacobian are not available under torch.inference_mode(); use torch.no_grad() instead."
        )


def linearize(eq: Equilibrium) -> Linearization:
    """Return f around the state, which is held constant, under the autocast that is on now.

    Args:
        eq: The map and the state.

    Raises:
        TypeError: What is given is no equilibrium.
        RuntimeError: Nothing can be differentiated here.
    """
    check_equilibrium(eq)
    refuse_inference_mode()
    layout = state_layout(eq.z, eq.batch_dims)
    check_inputs(eq.inputs, layout)
    matrix = layout.pack(map_tensors(Tensor.detach, eq.z))
    return Linearization(under_autocast(eq.f, layout), matrix, eq.inputs, layout)


def linearize_samples(eq: Equilibrium) -> Linearization:
    """Return f around the state, for what is computed of each sample by itself.

    Raises:
        ValueError: Samples see each other.
    """
    point = linearize(eq)
    if eq.batch_dims:
        check_products(eq.f, point.vjp, point.fz.detach())
    return point


class Products(Protocol):
    """Products with a Jacobian and its transpose, by whatever means."""

    def jvp(self, v: Tensor) -> Tensor:
        """Return J v for a (B, D) matrix v."""
        ...

    def vjp(self, u: Tensor) -> Tensor:
        """Return Jᵀu for a (B, D) matrix u."""
        ...


class ScaledJacobian:
    """Products with J / scale and its transpose, whose squares neither over- nor underflow."""

    def __init__(self, point: Products) -> None:
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
        """Return what was found out about J / scale for J; the error is given without what rounding adds to it."""
        assert self.scale is not None
        rounding = _ROUNDING * torch.finfo(value.dtype).eps
        error = torch.add(error, value, alpha=rounding).nan_to_num(math.inf, math.inf)
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


def random_units(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return a (B, D) matrix whose rows are random unit vectors."""
    start = Probes(like, 1, "gaussian", generator).draw()
    return start / torch.linalg.vector_norm(start, dim=1, keepdim=True)
