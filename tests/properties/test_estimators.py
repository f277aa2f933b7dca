"""Radius <= operator norm <= Frobenius norm: estimates within their errors of dense truths, and the penalty too."""

import copy
import dataclasses
import functools

import pytest
import torch
from properties.cells import BATCH, CASES, NAMES, Case, case, each_case, each_cell, jacobian, param, sigma, twin
from torch import Tensor

from steadeq import Estimate, frobenius_norm, jacobian_penalty, operator_norm, spectral_radius
from steadeq.models.monotone import MonotoneCell

FEW_EPS = 20


@functools.cache
def radius(name: str, stage: str, precision: str) -> Tensor:
    return torch.linalg.eigvals(jacobian(name, stage, precision)).abs().amax(dim=1)


def estimate(function, cell: Case, **options):
    with cell.computing():
        return function(cell.equilibrium, generator=torch.Generator().manual_seed(3), **options)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Estimates of a case beside the truth."""

    rho: Estimate
    norm: Estimate
    frobenius: Estimate
    truth: dict[str, Tensor]
    rounding: Tensor
    """(B,) what the products themselves are off by."""

    def misses(self, kind: str) -> Tensor:
        """Return by how much the truth is farther away than the error says, relative to it."""
        estimate, truth = getattr(self, kind), self.truth[kind]
        return ((estimate.value - truth).abs() - estimate.error - self.rounding).clamp(min=0) / truth


@functools.cache
def measured(name: str, stage: str, precision: str, max_products: int | None = None) -> Measured:
    cell = case(name, stage, precision)
    limit = {} if max_products is None else {"max_products": max_products}
    norm = sigma(name, stage, precision)
    return Measured(
        rho=estimate(spectral_radius, cell, **limit),
        norm=estimate(operator_norm, cell, **limit),
        frobenius=estimate(frobenius_norm, cell, num_probes=16, confidence=0.999),
        truth={
            "rho": radius(name, stage, precision),
            "norm": norm,
            "frobenius": torch.linalg.matrix_norm(jacobian(name, stage, precision)),
        },
        rounding=FEW_EPS * cell.eps * norm,
    )


@pytest.mark.parametrize(("name", "stage", "precision"), [param(*c) for c in CASES if c[2] != "bfloat16"])
def test_all_three_are_ordered_and_close_to_the_truth(name, stage, precision):
    # The default budget in single precision, and less in the others.
    check(measured(name, stage, precision, None if precision == "float32" else 30), slack=0.03, reach=0.05)


@pytest.mark.parametrize("max_products", [10, 20])
@each_cell
def test_the_same_with_few_products(name, stage, max_products):
    found = measured(name, stage, "float32", max_products)
    assert max(found.rho.num_products, found.norm.num_products) <= max_products
    check(found, slack=0.1, reach=0.3)


def check(found: Measured, *, slack: float, reach: float) -> None:
    """Check estimates that may miss the truth by some slack beyond their errors, and by some reach in all."""
    rho, norm, frobenius = found.rho, found.norm, found.frobenius
    # Always: Ritz values lie in the numerical range, and Rayleigh quotients of JᵀJ below its largest eigenvalue.
    assert (rho.value <= found.truth["norm"] + found.rounding).all()
    assert (norm.value <= found.truth["norm"] + found.rounding).all()
    assert (rho.value - rho.error <= norm.value + norm.error + found.rounding).all()
    assert (norm.value - norm.error <= frobenius.value + frobenius.error + found.rounding).all()
    # Errors of what starts at random may be too small now and then, but not by far; how often is counted below.
    for kind in ("rho", "norm", "frobenius"):
        assert (found.misses(kind) <= slack).all(), kind
        value, truth = getattr(found, kind).value, found.truth[kind]
        assert ((value - truth).abs() <= (0.3 if kind == "frobenius" else reach) * truth + found.rounding).all(), kind


# Of all cells together; test_spectrum.py and test_frobenius.py count the same of matrices.
@pytest.mark.slow
@pytest.mark.parametrize("max_products", [None, 20])
@pytest.mark.parametrize("kind", ["rho", "norm", "frobenius"])
def test_errors_cover_the_truth_at_least_19_times_in_20(kind, max_products):
    found = [measured(*pair, "float32", max_products) for pair in NAMES]
    is_covered = torch.cat([one.misses(kind) == 0 for one in found])
    assert is_covered.double().mean() >= 0.95


@each_cell
def test_where_they_stop_by_tolerance_they_are_as_close_with_restarts_or_without(name, stage):
    cell, radius_, norm_ = case(name, stage), radius(name, stage, "float64"), sigma(name, stage)
    found = estimate(spectral_radius, cell, memory=12, max_products=100, tol=1e-3)
    is_done = found.error <= 1e-3 * found.value
    assert ((found.value - radius_).abs() <= torch.where(is_done, 2e-3, 0.05) * radius_).all()
    assert (found.value <= norm_ * (1 + 1e-12)).all()
    for tol in (1e-1, 1e-3):
        rho = estimate(spectral_radius, cell, tol=tol, max_products=60)
        norm = estimate(operator_norm, cell, tol=tol, max_products=60)
        for value, truth in ((rho, radius_), (norm, norm_)):
            is_done = value.error <= tol * value.value
            assert ((value.value - truth).abs() <= 2 * tol * truth)[is_done].all(), tol
            # Whoever is not done has spent the budget, or all dimensions.
            assert is_done.all() or value.num_products in (60, cell.dim, 2 * cell.dim)


@pytest.mark.parametrize("method", ["power", "rayleigh"])
@each_cell
def test_power_methods_are_what_they_say(name, stage, method):
    cell, J = case(name, stage), jacobian(name, stage)
    num_products = 20
    reported = estimate(spectral_radius, cell, method=method, max_products=num_products)
    v = torch.randn(BATCH, cell.dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    growths, quotient, residual = [], None, None
    for _ in range(num_products):
        v = v / v.norm(dim=1, keepdim=True)
        image = torch.einsum("bij,bi->bj", J, v)
        quotient = (v * image).sum(dim=1)
        residual = (image - quotient[:, None] * v).norm(dim=1)
        growths.append(image.norm(dim=1))
        v = image
    if method == "rayleigh":
        torch.testing.assert_close(reported.value, quotient.abs(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(reported.error, residual, rtol=1e-6, atol=1e-9)
    else:
        late = torch.stack(growths[num_products // 2 :])
        torch.testing.assert_close(reported.value, late.log().mean(dim=0).exp(), rtol=1e-9, atol=0)
        spread = late.amax(dim=0) - late.amin(dim=0)
        assert (reported.error <= 10 * spread + 1e-9).all()


@each_case
def test_the_penalty_is_the_mean_square_of_the_jacobian(name, stage, precision):
    cell = case(name, stage, precision)
    J = jacobian(name, stage, precision)
    num_probes = 30
    with torch.no_grad():
        mean = float(estimate(jacobian_penalty, cell, num_probes=num_probes))
    truth = float(J.square().sum() / (BATCH * cell.dim))
    # ‖eᵀJ‖² has at most the variance 2 ‖J Jᵀ‖²_F that Gaussian probes give it.
    variance = 2 * (J @ J.mT).square().sum(dim=(1, 2)).sum()
    deviation = float((variance / num_probes).sqrt()) / (BATCH * cell.dim)
    assert abs(mean - truth) <= 4.5 * deviation + FEW_EPS * cell.eps * truth


@each_cell
def test_the_gradient_of_the_penalty_is_that_of_finite_differences(name, stage):
    cell = with_constant_step(case(name, stage))
    parameters = list(cell.f.parameters())
    gradients = torch.autograd.grad(penalty(cell), parameters, materialize_grads=True, allow_unused=True)
    generator = torch.Generator().manual_seed(4)
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    slope = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))
    long, short = (difference(cell, parameters, directions, step) for step in (2e-6, 1e-6))
    size = abs(short) + float(penalty(cell).detach())
    assert abs(long - short) <= 1e-4 * size
    assert abs(slope - short) <= 1e-6 * size + 3 * abs(long - short)


def with_constant_step(cell: Case) -> Case:
    """Return a copy of a cell; the step size of a monotone one follows the parameters outside of the graph."""
    f = copy.deepcopy(cell.f)
    if isinstance(f, MonotoneCell):
        f.alpha = float(f.prepare().alpha)
    return dataclasses.replace(cell, f=f)


def penalty(cell: Case) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return jacobian_penalty(cell.equilibrium, num_probes=3, generator=generator)


@torch.no_grad()
def difference(cell: Case, parameters: list[Tensor], directions: list[Tensor], step: float) -> float:
    """Return the central difference of the penalty along a direction."""
    before, values = [p.clone() for p in parameters], []
    for length in (step, -step):
        for p, start, direction in zip(parameters, before, directions, strict=True):
            p.copy_(start + length * direction)
        values.append(float(penalty(cell)))
    for p, start in zip(parameters, before, strict=True):
        p.copy_(start)
    return (values[0] - values[1]) / (2 * step)


@each_cell
def test_in_single_precision_value_and_gradient_of_the_penalty_are_those_of_double(name, stage):
    narrow, wide = case(name, stage, "float32"), twin(name, stage, "float32")
    results = []
    for cell in (narrow, wide):
        # The same probes: signs are drawn in single precision for both.
        parameters = list(cell.f.parameters())
        probes = torch.Generator().manual_seed(6)
        signs = [torch.randint(2, (BATCH, cell.dim), generator=probes) * 2.0 - 1 for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "steadeq.jacobian.penalty.Probes.draw", lambda self, signs=signs: signs.pop().to(self._like.dtype)
            )
            value = jacobian_penalty(cell.equilibrium, num_probes=2)
        gradients = torch.autograd.grad(value, parameters, materialize_grads=True, allow_unused=True)
        results.append((float(value.detach()), torch.cat([g.double().flatten() for g in gradients])))
    (value, gradient), (exact, exact_gradient) = results
    assert value == pytest.approx(exact, rel=1e-4)
    assert (gradient - exact_gradient).norm() <= 1e-3 * exact_gradient.norm()
