"""The Jacobian's largest singular value and its spectral radius, by products only.

An estimate of rho tells how fast a fixed point is approached; ‖J‖_F, which the paper penalizes, only bounds it from
above, and loosely (rho <= sigma <= ‖J‖_F).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .jacobian import Estimate, Probes, linearize
from .linearization import Linearization
from .precision import without_autocast
from .solvers.base import check_choice, check_count
from .solvers.history import weighted_sum
from .solvers.krylov import Arnoldi, unit
from .transforms import outside_of_graphs

Method = Literal["arnoldi", "power", "rayleigh"]


@outside_of_graphs
def spectral_radius(
    f: Callable[..., Any],
    z: Any,
    *inputs: Any,
    method: Method = "arnoldi",
    max_products: int = 200,
    tol: float = 1e-2,
    memory: int = 60,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate the largest absolute eigenvalue of J at z, for every sample.

    * "arnoldi": the largest Ritz value of the Krylov space. Right for complex pairs and defective matrices; `error` is
      its Ritz residual times the eigenvalue's condition number (or, if that is more, what some other Ritz value could
      still grow to), plus what the last few products changed. Stops at error <= tol * value.
    * "power": the geometric mean growth of ‖Jᵀv‖ over the second half of a power iteration. No memory; right for
      complex pairs, slower. `error` is three times the drift over what is averaged plus two standard errors.
    * "rayleigh": |vᵀJᵀv| at the end of a power iteration, the estimate that the paper's figures were made with. Biased:
      it does not converge where the dominant eigenvalues are a complex pair (a rotation by 90 degrees reads 0). Kept
      for comparison; `error` is the eigenvector residual ‖Jᵀv - (vᵀJᵀv) v‖, which shows the failure.

    Args:
        f: The cell, called as f(z, *inputs).
        z: The point, usually the equilibrium; a tensor or a nested structure of them.
        *inputs: What f takes after the state.
        method: See above.
        max_products: The most vector-Jacobian products to spend ("power" and "rayleigh" spend them all).
        tol: Relative error at which "arnoldi" stops.
        memory: Dimension of the Krylov space at which "arnoldi" restarts from its dominant Ritz vectors; each costs one
            state.
        generator: Source of the random start.

    Returns:
        The estimate.

    Example:
        >>> turn = torch.tensor([[0.0, -0.9], [0.9, 0.0]])
        >>> spectral_radius(lambda z: z @ turn.T, torch.ones(1, 2)).value
        tensor([0.9000])
    """
    check_count("max_products", max_products)
    check_count("memory", memory, minimum=2)
    _check_tol(tol)
    check_choice("method", method, get_args(Method))
    point, layout = linearize(f, z, inputs)
    start = _random_units(point.fz, generator)
    with torch.no_grad(), without_autocast(layout):
        if method == "arnoldi":
            return _arnoldi_radius(point, start, max_products, tol, memory)
        return _power_radius(point, start, max_products, method)


@outside_of_graphs
def operator_norm(
    f: Callable[..., Any],
    z: Any,
    *inputs: Any,
    max_products: int = 60,
    tol: float = 1e-2,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate the largest singular value of J at z, for every sample, by Lanczos on JᵀJ.

    Args:
        f: The cell, called as f(z, *inputs).
        z: The point, a tensor or a nested structure of them.
        *inputs: What f takes after the state.
        max_products: The most products with J and with Jᵀ to spend together; each pair keeps one vector.
        tol: Relative error at which to stop.
        generator: Source of the random start.

    Returns:
        The estimate, a lower bound that grows with the products spent; `error` is the residual of the singular vectors,
        within which there is a singular value, plus what the last few products changed.

    Example:
        >>> W = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
        >>> operator_norm(lambda z: z @ W.T, torch.ones(1, 2)).value
        tensor([3.])
    """
    check_count("max_products", max_products, minimum=2)
    _check_tol(tol)
    point, layout = linearize(f, z, inputs)
    start = _random_units(point.fz, generator)
    with torch.no_grad(), without_autocast(layout):
        return _lanczos_norm(point, start, max_products, tol)


def _check_tol(tol: float) -> None:
    if not tol >= 0:
        raise ValueError(f"tol is {tol!r}; it must be >= 0.")


def _random_units(like: Tensor, generator: torch.Generator | None) -> Tensor:
    start = Probes(like, 1, "gaussian", generator).draw()
    return start / torch.linalg.vector_norm(start, dim=1, keepdim=True)


def _arnoldi_radius(point: Linearization, start: Tensor, max_products: int, tol: float, memory: int) -> Estimate:
    dim = start.shape[1]
    space = Arnoldi(start, min(memory, max_products, dim))
    num_products = 0
    kept, rounding = _Kept(space.norm, tol), torch.zeros_like(space.norm)
    while True:
        space.extend(point.vjp(space.newest))
        num_products += 1
        # Eigenvalues of small matrices cost more than products with small Jacobians: look now and then.
        if space.size % 5 and space.size < space.capacity:
            continue
        ritz = _DominantRitz(space)
        is_exact = space.size == dim
        # A small space, as after a restart from an eigenvector, does not see how ill-conditioned an eigenvalue is.
        rounding = torch.maximum(rounding, ritz.rounding)
        if kept.update(ritz.value, ritz.error + rounding, is_exact) or is_exact or num_products == max_products:
            return Estimate(value=kept.value, error=kept.error, num_products=num_products)
        if space.size == space.capacity:
            restart = unit(ritz.restart, torch.linalg.vector_norm(ritz.restart, dim=1))
            space = Arnoldi(restart, min(memory, max_products - num_products))


class _Kept:
    """The estimates so far; a sample keeps its first good one, whatever its neighbors still need.

    A residual tells how close some eigenvalue is, not whether a larger one is still hidden from the space. So what an
    estimate changed since the last look counts as error too, and a good one has held still for a few products.
    """

    def __init__(self, like: Tensor, tol: float) -> None:
        self.value = torch.zeros_like(like)
        self.error = torch.full_like(like, math.inf)
        self._latest = self.error
        self._tol = tol

    def update(self, value: Tensor, error: Tensor, is_exact: bool) -> bool:
        """Take in new estimates; return whether all are good."""
        if not is_exact:
            error = (error + (value - self._latest).abs()).nan_to_num(math.inf, math.inf)
        self._latest = value
        is_open = self.error > self._tol * self.value
        self.value = torch.where(is_open, value, self.value)
        self.error = torch.where(is_open, error, self.error)
        return not bool((self.error > self._tol * self.value).any())


class _DominantRitz:
    """The Ritz value of largest modulus, its error, what rounding adds to it, and a vector to restart from."""

    def __init__(self, space: Arnoldi) -> None:
        size = space.size
        # Small and often ill-conditioned: in double precision, and not where eigenvalue solvers are slow.
        hessenberg = space.hessenberg.cpu().double()
        square = hessenberg[:, :size].nan_to_num(0.0, 0.0, 0.0)
        values, vectors = torch.linalg.eig(square)
        order = values.abs().argsort(dim=1, descending=True)
        top = order[:, :1]
        right = vectors.take_along_dim(top[:, None], dim=2)[:, :, 0]
        residuals = hessenberg[:, size, size - 1, None] * vectors[:, -1].abs()
        residual = residuals.take_along_dim(top, dim=1)[:, 0]
        condition = self._condition(square, values.take_along_dim(top, dim=1), right)
        rounding = 20 * torch.finfo(space.norm.dtype).eps * torch.linalg.matrix_norm(square)
        value = values.abs().amax(dim=1)
        # A Ritz value that has not converged may be on its way to a larger eigenvalue.
        hidden = (values.abs() + residuals).amax(dim=1) - value
        failed = ~hessenberg.isfinite().flatten(1).all(dim=1)
        like = space.norm
        self.value = torch.where(failed, math.nan, value).to(like)
        self.rounding = (rounding * condition).to(like)
        self.error = torch.where(failed, math.inf, torch.maximum(residual * condition, hidden)).to(like)
        # A sum of the leading Ritz vectors; real parts suffice, as complex ones come in pairs.
        leading = vectors.take_along_dim(order[:, None, : max(2, size // 4)], dim=2).sum(dim=2).real
        self.restart = weighted_sum(leading.to(like), space.basis[:, :size])

    @staticmethod
    def _condition(square: Tensor, value: Tensor, right: Tensor) -> Tensor:
        """Return ‖left‖ ‖right‖ / |leftᴴ right|, by which a residual may be magnified in the eigenvalue."""
        values, vectors = torch.linalg.eig(square.mT)
        nearest = (values - value).abs().argmin(dim=1, keepdim=True)
        left = vectors.take_along_dim(nearest[:, None], dim=2)[:, :, 0]
        overlap = (left * right).sum(dim=1).abs() / torch.linalg.vector_norm(left, dim=1)
        return 1 / overlap.clamp(min=1e-12)


def _power_radius(point: Linearization, start: Tensor, max_products: int, method: Method) -> Estimate:
    vectors, growths = start, []
    rayleigh = residual = torch.zeros(start.shape[0], dtype=start.dtype, device=start.device)
    for _ in range(max_products):
        image = point.vjp(vectors)
        if method == "rayleigh":
            quotient = torch.linalg.vecdot(vectors, image)
            rayleigh = quotient.abs()
            residual = torch.linalg.vector_norm(image - quotient[:, None] * vectors, dim=1)
        norm = torch.linalg.vector_norm(image, dim=1)
        growths.append(norm)
        vectors = unit(image, norm)
    if method == "rayleigh":
        return Estimate(value=rayleigh, error=residual, num_products=max_products)
    late = torch.stack(growths[max_products // 2 :]).log()
    mean = late.mean(dim=0)
    half = max(1, late.shape[0] // 2)
    drift = (late[half:].mean(dim=0) - late[:half].mean(dim=0)).abs() if late.shape[0] > 1 else mean + math.inf
    spread = late.std(dim=0) / math.sqrt(late.shape[0]) if late.shape[0] > 1 else mean + math.inf
    value = mean.exp()
    error = torch.where(value > 0, value * (3 * drift + 2 * spread), 0)
    return Estimate(value=value, error=error.nan_to_num(math.inf, math.inf), num_products=max_products)


def _lanczos_norm(point: Linearization, start: Tensor, max_products: int, tol: float) -> Estimate:
    steps = min(max_products // 2, start.shape[1])
    space = Arnoldi(start, steps)
    kept = _Kept(space.norm, tol)
    for step in range(1, steps + 1):
        space.extend(point.vjp(point.jvp(space.newest)))
        if step % 3 and step < steps:
            continue
        hessenberg = space.hessenberg.cpu().double()
        square = hessenberg[:, :step]
        squared, vectors = torch.linalg.eigh((square + square.mT) / 2)
        sigma = squared[:, -1].clamp(min=0).sqrt()
        # A residual of JᵀJ at sigma² moves sigma by half of it over sigma.
        residual = hessenberg[:, step, step - 1] * vectors[:, -1, -1].abs()
        bound = torch.where(sigma > 0, residual / (2 * sigma), 0)
        if kept.update(sigma.to(start), bound.to(start), step == start.shape[1]):
            break
    return Estimate(value=kept.value, error=kept.error, num_products=2 * space.size)
