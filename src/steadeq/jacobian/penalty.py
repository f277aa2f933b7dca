"""Differentiable penalties on the Jacobian; the paper uses the Frobenius norm."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from .._internal.autocast import state_layout, under_autocast, without_autocast
from .._internal.linearization import constant, first_positive
from .._internal.trees import check_inputs, map_tensors
from .._internal.unsupported import outside_of_graphs
from .._internal.validation import check_choice, check_count
from ..equilibrium import Equilibrium
from ..solvers._krylov import unit
from ._differences import Differences
from ._eigenvectors import dominant_eigenvectors
from ._products import (
    Probe,
    Probes,
    ScaledJacobian,
    linearize,
    linearize_samples,
    random_units,
    refuse_inference_mode,
    without_lost,
)

Estimator = Literal["vjp", "difference"]

_MAX_SKEW = 10.0
"""The most that a left eigenvector adds to the right one, in lengths of that: one less than the condition number."""

_TRUST = 0.1
"""The same for a left vector found by few products, times its relative residual.

A left vector that is wrong can point uphill; conj(x) in its place never does, as yᵀx = 1. Sixty steps of descent with 5
products each, from a radius of 1.24 on twelve matrices far from normal, ended at 0.40 to 0.72 with 0.1, at 0.39 to 0.72
with 0 (without left vectors), and at 0.40 to 1.26 with 0.3.
"""


@outside_of_graphs
def jacobian_penalty(
    eq: Equilibrium,
    *,
    num_probes: int = 1,
    probe: Probe = "rademacher",
    estimator: Estimator = "vjp",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimate the mean over the batch of ‖J‖²_F / d, differentiably (Eq. 4).

    All penalties leave out samples whose solve ended in NaN.

    The gradient flows into the parameters of f and the graph of its inputs. z is held constant, as in the paper: f is
    evaluated again, and no gradient flows through the solve or the loop that computed z.

    * "vjp": E ‖eᵀJ‖² = ‖J‖²_F (Hutchinson) over probes e, one vector-Jacobian product each, without bias. Its gradient
      needs second derivatives of f, which fused attention, compiled code and many custom kernels do not have.
    * "difference": ‖J‖²_F = E ‖Jv‖² too, with J v ≈ (f(z + hv/2) - f(z - hv/2)) / h: two evaluations per probe and an
    ordinary backward pass, for any f. h is a tenth of the root mean square of each sample's state (or
      of its image, where the state is zero): a secant across a small ball, not the slope at its center. Random layers
      draw the same numbers in both evaluations; batch norm in training mode updates its statistics in both.
      Half-precision results are subtracted in float32.

    The value of "difference" was 0.2%, 5.5% and 0.1% too small on fresh Transformer, multiscale and GELU cells, as
    curvature and the kinks of ReLUs bend the secant. The cosines of its gradient with the exact one of the same probe
    were 0.98, 0.78 and 1.00 for a batch of 4, and 0.93 for 32 samples of the multiscale cell: kinks are noise, which
    averages out. Rounding adds next to nothing in float32, up to 0.003 to the value under bfloat16 autocast, and up to
    0.005 in bfloat16. If the Jacobian is not larger than this error, a `PrecisionWarning` is issued.

    Args:
        eq: Equilibrium from `fixed_point`, `layer.solve` or `Equilibrium.at(f, z, *inputs)`.
        num_probes: Number of probes, M in the paper; one is about 1% accurate for a usual batch.
        probe: Distribution of the probes. "gaussian" is the paper's; "rademacher" never has more variance.
        estimator: How products with J are computed; see above.
        generator: Source of randomness.

    Returns:
        A scalar.

    Example:
        >>> W = torch.diag(torch.tensor([0.5, 2.0])).requires_grad_()
        >>> eq = Equilibrium.at(lambda z: z @ W.T, torch.zeros(3, 2))
        >>> jacobian_penalty(eq)  # (0.25 + 4) / 2, exact for a diagonal Jacobian
        tensor(2.1250, grad_fn=<DivBackward0>)
    """
    check_choice("estimator", estimator, get_args(Estimator))
    eq = without_lost(eq)
    if estimator == "difference":
        return _secant_penalty(eq, num_probes, probe, generator)
    point = linearize(eq)
    probes = Probes(point.fz, num_probes, probe, generator)
    create_graph = torch.is_grad_enabled()
    total = point.fz.new_zeros(())
    with without_autocast(point.layout):
        for _ in range(num_probes):
            total = total + point.vjp(probes.draw(), create_graph=create_graph).square().sum()
    return total / (num_probes * point.layout.batch_size * point.layout.dim)


def _secant_penalty(eq: Equilibrium, num_probes: int, probe: Probe, generator: torch.Generator | None) -> Tensor:
    """Return the penalty by differences."""
    point = Differences(eq)
    probes = Probes(point.z, num_probes, probe, generator)
    drawn = [probes.draw() for _ in range(num_probes)]
    total = point.z.new_zeros(())
    with without_autocast(point.layout):
        for v in drawn:
            total = total + point.secant(v).square().sum()
    return total / (num_probes * point.layout.batch_size * point.layout.dim)


@outside_of_graphs
def operator_norm_penalty(eq: Equilibrium, *, num_steps: int = 5, generator: torch.Generator | None = None) -> Tensor:
    """Estimate the mean over the batch of sigma(J)², the square of the largest singular value, differentiably.

    The power method on JJᵀ turns a random unit vector u of every sample towards the left singular vector, and the
    penalty is ‖Jᵀu‖² with u held constant. That is a lower bound of sigma² that grows with the steps. If u has
    converged, the gradient is exact, or a subgradient if the largest singular value is repeated.

    Nothing is divided by d. ‖J‖²_F / d, which `jacobian_penalty` estimates, is the mean of all squared singular values,
    and sigma² is the largest of them: both have the same unit, are equal for multiples of rotations, and do not grow
    with d by themselves.

    A step costs a product with Jᵀ and one with J. In total these are 2 num_steps + 1 products, of which only the last
    is differentiated.

    Args:
        eq: Equilibrium from `fixed_point`, `layer.solve` or `Equilibrium.at(f, z, *inputs)`.
        num_steps: Steps of the power method; 5 reach 0.83 to 0.98 of sigma² on Transformer, multiscale and
            convolutional cells, 20 about 0.97 or more.
        generator: Source of the random start.

    Returns:
        A scalar.

    Example:
        >>> W = torch.diag(torch.tensor([0.5, 2.0])).requires_grad_()
        >>> eq = Equilibrium.at(lambda z: z @ W.T, torch.zeros(3, 2))
        >>> operator_norm_penalty(eq, num_steps=20)
        tensor(4., grad_fn=<DivBackward0>)
    """
    check_count("num_steps", num_steps)
    point = linearize_samples(without_lost(eq))
    u = random_units(point.fz, generator)
    with without_autocast(point.layout):
        with torch.no_grad():
            scaled = ScaledJacobian(point)
            for _ in range(num_steps):
                image = scaled.jvp(scaled.vjp(u))
                u = unit(image, torch.linalg.vector_norm(image, dim=1))
        total = point.vjp(u, create_graph=torch.is_grad_enabled()).square().sum()
    return total / point.layout.batch_size


@outside_of_graphs
def spectral_penalty(
    eq: Equilibrium,
    *,
    num_products: int = 20,
    estimator: Estimator = "vjp",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimate the mean over the batch of rho(J)², the square of the largest absolute eigenvalue, differentiably.

    Half of the products go into a Krylov space of J, whose largest Ritz value is λ with the vector x, and half into one
    of Jᵀ that starts with x and has a vector y for λ. The penalty is |λ|², for complex pairs too, and its gradient is
    2 Re(conj(λ) yᵀ dJ x / yᵀx) with both vectors held constant: this is the exact derivative for any J once both have
    converged. The quotient xᴴJx of x alone would be right for normal J only. The derivative of a nearly repeated
    eigenvalue is large, and infinite for a defective one, so the part of y orthogonal to x is clipped at ten times its
    length.

    The square has the unit of ‖J‖²_F / d and of sigma², with rho² <= sigma², and a derivative where rho is zero.

    * "vjp": J and its derivative by autograd, exact. It needs second derivatives of f, as the other penalties do.
    * "difference": J v for the space of J by differences to one side without a graph, with a step of sqrt(eps); Jᵀu by
      an ordinary backward pass; and the gradient of yᵀJx by one difference with a graph along x, with the step of
      `jacobian_penalty`. For a complex pair it takes one direction of the plane, at a random angle for each sample; its
      mean is the gradient of the whole plane. So it costs num_products + 3 evaluations, and works under fused
      attention, compilation and checkpointing (not with use_reentrant=True). If the vectors have converged, it is
      unbiased on linear maps up to rounding; on other maps the gradient has the bias of a secant and the noise of
      kinks, as described for `jacobian_penalty`. If they have not, the value is too small (a third of rho² with 5
      products on the loop of docs/stabilize.md), and y is drawn towards conj(x), so that the gradient of a J far from
      normal still leads downhill, but not by the steepest way.

    Args:
        eq: Equilibrium from `fixed_point`, `layer.solve` or `Equilibrium.at(f, z, *inputs)`.
        num_products: Products with J and with Jᵀ to spend together. One or two more, for complex pairs, are
            differentiated.
        estimator: How products with J are made; see above.
        generator: Source of the random start.

    Returns:
        A scalar.

    Example:
        >>> W = (0.9 * torch.tensor([[0.0, -1.0], [1.0, 0.0]])).requires_grad_()
        >>> spectral_penalty(Equilibrium.at(lambda z: z @ W.T, torch.zeros(1, 2)))
        tensor(0.8100, grad_fn=<MeanBackward0>)
    """
    return spectral_penalty_and_vectors(eq, num_products, estimator, None, generator)[0]


def spectral_penalty_and_vectors(
    eq: Equilibrium,
    num_products: int,
    estimator: Estimator,
    start: Tensor | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Return the penalty on rho², and (B, D) vectors for the next step.

    Args:
        eq: The equilibrium.
        num_products: Products to spend.
        estimator: How products are computed.
        start: Vectors from the previous step; ignored if the batch size has changed.
        generator: Source of the random start.
    """
    check_count("num_products", num_products, minimum=2)
    check_choice("estimator", estimator, get_args(Estimator))
    eq = without_lost(eq)
    if estimator == "difference":
        refuse_inference_mode()
        point = Differences(eq)
        random, angles = random_units(point.z, generator), _angles(point.z, generator)
    else:
        point = linearize_samples(eq)
        random, angles = random_units(point.fz, generator), None
    if start is not None and start.shape == random.shape:
        # A space that starts at an eigenvector alone sees no other, which may have grown larger.
        start = start.to(random)
        random = 0.1 * random + unit(start, torch.linalg.vector_norm(start, dim=1))
    with without_autocast(point.layout):
        with torch.no_grad():
            scaled = ScaledJacobian(point)
            value, right, left, residual = dominant_eigenvectors(scaled, random, num_products)
            assert scaled.scale is not None
            value = value * scaled.scale
            skew = torch.full_like(residual, _MAX_SKEW)
            if estimator == "difference":
                skew = skew.minimum(_TRUST / residual.nan_to_num(math.inf))
            weight = 2 * value.conj()[:, None] * _dual(right, left, skew[:, None])
        squares = value.abs().square()
        if torch.is_grad_enabled():
            if isinstance(point, Differences):
                assert angles is not None
                slopes = _secant_slopes(point, weight, right, angles)
            else:
                slopes = torch.linalg.vecdot(point.vjp(weight.real, create_graph=True), right.real)
                if bool(value.imag.any()):
                    slopes = slopes - torch.linalg.vecdot(point.vjp(weight.imag, create_graph=True), right.imag)
            # Zero, with the derivative of the square.
            squares = squares + slopes - slopes.detach()
    return squares.mean(), right.real


def _angles(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return (B, 1) random angles."""
    device = like.device if generator is None else generator.device
    turns = torch.rand(like.shape[0], 1, dtype=like.dtype, device=device, generator=generator)
    return 2 * math.pi * turns.to(like.device)


def _secant_slopes(point: Differences, weight: Tensor, right: Tensor, angles: Tensor) -> Tensor:
    """Return (B,) estimates of Re(wᵀJx) for constant complex w and x, differentiably, by one difference.

    Nothing changes if x is turned by an angle and w back by the same. The product of the real parts alone,
    Re(w)ᵀJ Re(x), has half of it as its mean over all angles.
    """
    is_pair = (right.imag != 0).any(dim=1, keepdim=True)
    turn = torch.polar(torch.ones_like(angles), torch.where(is_pair, angles, 0))
    twice = torch.where(is_pair, 2.0, 1.0)
    return torch.linalg.vecdot((twice * turn.conj() * weight).real, point.secant((turn * right).real))


def _dual(right: Tensor, left: Tensor, skew: Tensor) -> Tensor:
    """Return the multiple y of each left vector with yᵀx = 1, and what it adds to conj(x) at most (B, 1) skew long."""
    overlap = (left * right).sum(dim=1, keepdim=True)
    rest = left / torch.where(overlap == 0, torch.finfo(overlap.real.dtype).tiny, overlap) - right.conj()
    length = torch.linalg.vector_norm(rest, dim=1, keepdim=True)
    return right.conj() + rest * (skew / torch.maximum(length, skew).clamp(min=torch.finfo(skew.dtype).tiny))


@outside_of_graphs
def residual_penalty(eq: Equilibrium) -> Tensor:
    """Return the mean over the batch of ‖f(z) - z‖² / ‖f(z)‖², differentiably: how far z is from being a fixed point.

    It costs one evaluation and an ordinary backward pass. z is held constant, so the gradient moves the fixed point of
    f towards the state in which the solver or the loop ended. The residual is squared because its norm has a kink at
    zero, where rounding would choose the direction of the gradient.

    Args:
        eq: Equilibrium from `fixed_point`, `layer.solve` or `Equilibrium.at(f, z, *inputs)`.

    Returns:
        A scalar; a sample with f(z) = 0 counts as 1, or as 0 if z is zero too.

    Example:
        >>> residual_penalty(Equilibrium.at(lambda z: 0.5 * z, torch.ones(3, 2)))
        tensor(1.0000, grad_fn=<MeanBackward0>)
    """
    eq = without_lost(eq)
    layout = state_layout(eq.z, eq.batch_dims)
    check_inputs(eq.inputs, layout)
    fz = layout.pack_image(under_autocast(eq.f, layout)(map_tensors(constant, eq.z), *eq.inputs), layout.batch_size)
    if torch.is_grad_enabled() and not fz.requires_grad:
        # Without a graph; a constant f has none, and needs none.
        linearize(eq).check_graph()
    with without_autocast(layout):
        z = layout.pack(map_tensors(Tensor.detach, eq.z))
        size = first_positive(*(torch.linalg.vector_norm(matrix, dim=1, keepdim=True) for matrix in (fz, z)))
        return ((fz - z) / size).square().sum(dim=1).mean()
