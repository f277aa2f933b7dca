"""The Jacobian's largest singular value and its spectral radius, by products only.

An estimate of rho tells how fast a fixed point is approached; ‖J‖_F, which the paper penalizes, only bounds it from
above, and loosely (rho <= sigma <= ‖J‖_F).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from .._internal.autocast import without_autocast
from .._internal.unsupported import outside_of_graphs
from .._internal.validation import check_choice, check_count
from ..equilibrium import Equilibrium
from ..solvers._krylov import Arnoldi, unit
from ._products import Estimate, ScaledJacobian, linearize_samples, random_units

Method = Literal["arnoldi", "power", "rayleigh"]

_SAFETY = 3
"""Factor on a residual times an estimated condition number, as the estimate is random."""
_UNKNOWN = 0.25
"""Error of a radius, in norms of J, from which on nothing is known."""
_MISS = 0.05
"""Share of random starts for which the error of an operator norm may be too small."""


@outside_of_graphs
def spectral_radius(
    eq: Equilibrium,
    *,
    method: Method = "arnoldi",
    max_products: int = 200,
    tol: float = 1e-2,
    memory: int = 60,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate the largest absolute eigenvalue of J at the equilibrium, for every sample.

    * "arnoldi": the largest Ritz value of the Krylov space, for complex pairs too, and never more than the operator
      norm but for rounding. `error` is three times its residual times the eigenvalue's condition number (or, if that is
      more, what some other Ritz value could still grow to), plus what the last few products changed. Stops at
      error <= tol * value. The condition number is estimated from the random start, so `error` is not a strict bound:
      it covers the truth for at least 98% of the starts on the matrices of benchmarks/spectra.py, and for at least 95%
      on those of them that are far from normal (Jordan blocks, Grcar, convection), though for fewer on some that are
      banded and larger than `memory`. It is infinite where it would be more than a quarter of the norm of J: either
      more products are needed, or rounding alone moves the eigenvalues of J by as much, and no number of products would
      tell.
    * "power": the geometric mean growth of ‖Jᵀv‖ over the second half of a power iteration. No memory; right for
      complex pairs, slower. `error` is three times the drift over what is averaged plus two standard errors.
    * "rayleigh": |vᵀJᵀv| at the end of a power iteration, the estimate that the paper's figures were made with. Biased:
      it does not converge where the dominant eigenvalues are a complex pair (a rotation by 90 degrees reads 0). Kept
      for comparison; `error` is the eigenvector residual ‖Jᵀv - (vᵀJᵀv) v‖, which shows the failure.

    Args:
        eq: Equilibrium from `fixed_point`, `layer.solve` or `Equilibrium.at(f, z, *inputs)`.
        method: Estimator; see above.
        max_products: Largest number of vector-Jacobian products ("power" and "rayleigh" spend them all).
        tol: Relative error at which "arnoldi" stops.
        memory: Dimension of the Krylov space at which "arnoldi" restarts with the dominant half of its Ritz vectors;
            each costs one state.
        generator: Source of the random start.

    Returns:
        The estimate.

    Example:
        >>> turn = torch.tensor([[0.0, -0.9], [0.9, 0.0]])
        >>> spectral_radius(Equilibrium.at(lambda z: z @ turn.T, torch.ones(1, 2))).value
        tensor([0.9000])
    """
    check_count("max_products", max_products)
    check_count("memory", memory, minimum=2)
    _check_tol(tol)
    check_choice("method", method, get_args(Method))
    linearization = linearize_samples(eq)
    point, start = ScaledJacobian(linearization), random_units(linearization.fz, generator)
    with torch.no_grad(), without_autocast(linearization.layout):
        if method == "arnoldi":
            return _arnoldi_radius(point, start, max_products, tol, memory)
        return _power_radius(point, start, max_products, method)


@outside_of_graphs
def operator_norm(
    eq: Equilibrium,
    *,
    max_products: int = 60,
    tol: float = 1e-2,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate the largest singular value of J at the equilibrium, for every sample, by Lanczos on JᵀJ.

    Args:
        eq: Equilibrium from `fixed_point`, `layer.solve` or `Equilibrium.at(f, z, *inputs)`.
        max_products: Largest number of products with J and with Jᵀ together; each pair keeps one vector.
        tol: Relative error at which to stop.
        generator: Source of the random start.

    Returns:
        The estimate. Its `value` is a lower bound, but for rounding, that grows with the products spent; value + error
        is an upper bound for at least 95% of the random starts, whatever J is.

    Example:
        >>> W = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
        >>> operator_norm(Equilibrium.at(lambda z: z @ W.T, torch.ones(1, 2))).value.round(decimals=3)
        tensor([3.])
    """
    check_count("max_products", max_products, minimum=2)
    _check_tol(tol)
    linearization = linearize_samples(eq)
    point, start = ScaledJacobian(linearization), random_units(linearization.fz, generator)
    with torch.no_grad(), without_autocast(linearization.layout):
        return _lanczos_norm(point, start, max_products, tol)


def _check_tol(tol: float) -> None:
    if not tol >= 0:
        raise ValueError(f"tol is {tol!r}; it must be >= 0.")


def _arnoldi_radius(point: ScaledJacobian, start: Tensor, max_products: int, tol: float, memory: int) -> Estimate:
    dim = start.shape[1]
    space = Arnoldi(start, min(memory, max_products, dim))
    kept, seed = _Kept(space.norm, tol), torch.ones(start.shape[0], 1, dtype=torch.float64, device="cpu")
    num_products = 0
    while True:
        space.extend(point.vjp(space.newest))
        num_products += 1
        is_last = num_products == max_products
        # Eigenvalues of small matrices cost more than products with small Jacobians: look now and then.
        if space.size % 5 and space.size < space.capacity and not is_last:
            continue
        ritz = _DominantRitz(space, seed)
        is_exact = space.size == dim
        # A residual tells how close some eigenvalue is, not whether a larger one is still hidden from the space. So
        # what the estimate changed since the last look counts as error too.
        change = 0 if is_exact else (ritz.value - kept.latest).abs()
        if kept.update(ritz.value, ritz.error + change) or is_exact or is_last:
            return point.estimate(kept.value, kept.error, num_products)
        if space.size == space.capacity:
            basis, seed = ritz.leading(max(1, space.size // 2))
            space.restart(basis)


class _Kept:
    """The estimates so far; a sample keeps its first good one, whatever its neighbors still need."""

    def __init__(self, like: Tensor, tol: float) -> None:
        self.value = torch.zeros_like(like)
        self.error = self.latest = torch.full_like(like, math.inf)
        self._tol = tol

    def update(self, value: Tensor, error: Tensor) -> bool:
        """Take in new estimates; return whether all are good."""
        self.latest = value
        is_open = self.error > self._tol * self.value
        self.value = torch.where(is_open, value, self.value)
        self.error = torch.where(is_open, error.nan_to_num(math.inf, math.inf), self.error)
        return not bool((self.error > self._tol * self.value).any())


class _DominantRitz:
    """The Ritz value of largest modulus and its error.

    A residual is magnified in an eigenvalue by its condition number, 1 / |yᴴx| for unit left and right eigenvectors. A
    Krylov space has right ones only, and seen from inside of it, a pseudo-eigenvalue far outside of the spectrum is
    well-conditioned. But the space has the start too, whose coefficient along x is c = yᴴstart / yᴴx; and as the start
    is random, |yᴴstart| is about 1 / sqrt(D). So the condition number is about |c| sqrt(D), at no further product.

    Args:
        space: The space.
        seed: (B, fewer) the random start, or what restarts left of it, in the first vectors of the basis.
    """

    def __init__(self, space: Arnoldi, seed: Tensor) -> None:
        size, like = space.size, space.norm
        # Small and often ill-conditioned: in double precision, and not where eigenvalue solvers are slow.
        hessenberg = space.hessenberg.cpu().double()
        failed = ~hessenberg.isfinite().flatten(1).all(dim=1)
        hessenberg = hessenberg.nan_to_num(0.0, 0.0, 0.0)
        self._square, last = hessenberg[:, :size], hessenberg[:, size:]
        self._seed = functional.pad(seed, (0, size - seed.shape[1]))
        values, vectors = torch.linalg.eig(self._square)
        # Conjugates are neighbors of the same modulus; a stable order keeps them together.
        order = values.abs().argsort(dim=1, descending=True, stable=True)
        self._values = values.take_along_dim(order, dim=1)
        self._vectors = vectors.take_along_dim(order[:, None], dim=2)
        moduli, residuals = self._values.abs(), (last.to(vectors) @ self._vectors)[:, 0].abs()
        rounding = 20 * torch.finfo(like.dtype).eps * torch.linalg.matrix_norm(self._square)
        error = (_SAFETY * residuals[:, 0] + rounding) * self._condition(dim=space.basis.shape[2])
        # A Ritz value that has not converged may be on its way to a larger eigenvalue. In the inner half there are
        # always some, as spaces converge from the outside.
        outer = (moduli + residuals)[:, : max(4, size // 2)]
        error = torch.maximum(error, outer.amax(dim=1) - moduli[:, 0])
        is_unknown = failed | (error > _UNKNOWN * torch.linalg.matrix_norm(self._square, 2))
        self.value = torch.where(failed, math.nan, moduli[:, 0]).to(like)
        """(B,) moduli."""
        self.error = torch.where(is_unknown, math.inf, error).to(like)
        """(B,) how far these may be off; infinite where that is not known."""

    def _condition(self, dim: int) -> Tensor:
        values, vectors = torch.linalg.eig(self._square.mT)
        nearest = (values - self._values[:, :1]).abs().argmin(dim=1, keepdim=True)
        left = vectors.take_along_dim(nearest[:, None], dim=2)[:, :, 0]
        overlap = (left * self._vectors[:, :, 0]).sum(dim=1).abs()
        along = (left * self._seed).sum(dim=1).abs()
        # At least what it is within the space.
        return (along * math.sqrt(dim)).clamp(min=1) / overlap

    def leading(self, count: int) -> tuple[Tensor, Tensor]:
        """Return what to restart with.

        Returns:
            (B, size, count) orthonormal columns that span the leading Ritz vectors, and (B, count) what the seed has
            along these vectors, in terms of the columns.
        """
        values, vectors = self._values[:, None, :count], self._vectors[:, :, :count]
        # The last may be half of a pair, and half a pair spans nothing invariant.
        is_whole = torch.ones_like(values.real)
        is_whole[:, :, -1:] = (values[:, :, -1:].imag <= 0).double()
        basis = torch.linalg.qr(torch.where(values.imag < 0, vectors.imag, vectors.real))[0] * is_whole
        # Without raising where eigenvectors are dependent; errors are infinite then.
        parts = torch.linalg.solve_ex(self._vectors, self._seed.to(vectors))[0][:, :count, None]
        seed = ((vectors * is_whole) @ torch.where(parts.isfinite(), parts, 0)).real
        return basis, (basis.mT @ seed)[:, :, 0]


def _power_radius(point: ScaledJacobian, start: Tensor, max_products: int, method: Method) -> Estimate:
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
        return point.estimate(rayleigh, residual, max_products)
    late = torch.stack(growths[max_products // 2 :]).log()
    mean = late.mean(dim=0)
    half = max(1, late.shape[0] // 2)
    drift = (late[half:].mean(dim=0) - late[:half].mean(dim=0)).abs() if late.shape[0] > 1 else mean + math.inf
    spread = late.std(dim=0) / math.sqrt(late.shape[0]) if late.shape[0] > 1 else mean + math.inf
    value = mean.exp()
    error = torch.where(value > 0, value * (3 * drift + 2 * spread), 0)
    return point.estimate(value, error, max_products)


def _lanczos_norm(point: ScaledJacobian, start: Tensor, max_products: int, tol: float) -> Estimate:
    dim = start.shape[1]
    steps = min(max_products // 2, dim)
    space = Arnoldi(start, steps)
    kept = _Kept(space.norm, tol)
    for step in range(1, steps + 1):
        space.extend(point.vjp(point.jvp(space.newest)))
        if step % 3 and step < steps:
            continue
        hessenberg = space.hessenberg.cpu().double()
        failed = ~hessenberg.isfinite().flatten(1).all(dim=1)
        hessenberg = hessenberg.nan_to_num(0.0, 0.0, 0.0)
        square = hessenberg[:, :step]
        values = torch.linalg.eigvalsh((square + square.mT) / 2).clamp(min=0)
        below = hessenberg.diagonal(offset=-1, dim1=1, dim2=2)
        value = torch.where(failed, math.nan, values[:, -1].sqrt())
        # In all dimensions nothing is hidden.
        hidden = torch.zeros_like(value) if step == dim else _hidden(values, below, dim)
        error = (values[:, -1] + hidden).sqrt() - value
        if kept.update(value.to(start), error.to(start)):
            break
    return point.estimate(kept.value, kept.error, 2 * space.size)


def _hidden(values: Tensor, below: Tensor, dim: int) -> Tensor:
    """Return how much larger than all Ritz values an eigenvalue may be.

    The newest Lanczos vector is p(A) start for a polynomial p that has the Ritz values as its roots, and one over the
    product of the entries below the diagonal as its leading coefficient. Its product with a unit eigenvector y is
    p(eigenvalue) yᵀstart, which is at most 1; and |yᵀstart| of a random start is seldom small (van Dorsselaer,
    Hochstenbach and van der Vorst, 2000).

    Args:
        values: (B, steps) Ritz values of a symmetric operator in ascending order.
        below: (B, steps) entries below the diagonal.
        dim: Dimension of the operator.
    """
    # A coordinate of a random unit vector is about normal with variance 1 / dim: this small for a share of _MISS.
    least = _MISS * math.sqrt(math.pi / 2 / dim)
    steps = below.log().sum(dim=1) - math.log(least)
    low, high = torch.zeros_like(steps), (steps / values.shape[1]).exp()
    gaps = values[:, -1:] - values
    for _ in range(40):
        middle = (low + high) / 2
        is_above = (middle[:, None] + gaps).log().sum(dim=1) > steps
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
    return high
