"""Gradients are as good as the reported residual says, and those of approximate adjoints are what their names mean.

The u that an adjoint hands to the graph of f is overheard at the image of f, so that everything between the loss and
the parameters is tested, and compared with what dense Jacobians say.
"""

import dataclasses
import math
from typing import Any

import pytest
import torch
from properties.cells import (
    BATCH,
    CASES,
    KINDS,
    NAMES,
    Case,
    case,
    each_case,
    each_cell,
    flatten,
    jacobian,
    norms,
    param,
    resolvent,
    sigma,
    twin,
    unflatten,
)
from torch import Tensor

from steadeq import (
    GMRES,
    Anderson,
    Broyden,
    Equilibrium,
    Implicit,
    NewtonKrylov,
    OneStep,
    Phantom,
    Picard,
    Shine,
    Status,
    Unrolled,
    fixed_point,
)
from steadeq._internal import independence
from steadeq._internal.trees import leaves

pytestmark = pytest.mark.filterwarnings("ignore::steadeq.ConvergenceWarning")

FEW_EPS = 8
"""Epsilons of ‖u‖ (1 + ‖J‖) that rounding may add to a residual, and of ‖u‖ to u itself."""


class Overheard:
    """A map that notes what gradients arrive at its image: products first, and in the end the u of the adjoint."""

    def __init__(self, f: Any) -> None:
        self._f = f
        self.heard: list[dict[int, Tensor]] = []
        # The product by which a cell is first looked at is not one of the backward pass.
        independence._independent.add(self)

    def __call__(self, z: Any, *inputs: Any) -> Any:
        image = self._f(z, *inputs)
        if torch.is_grad_enabled():
            for position, leaf in enumerate(leaves(image)):
                leaf.register_hook(lambda g, position=position: self._note(position, g))
        return image

    def _note(self, position: int, g: Tensor) -> None:
        if not self.heard or position in self.heard[-1]:
            self.heard.append({})
        self.heard[-1][position] = g.detach().clone()

    @property
    def u(self) -> Tensor:
        last = self.heard[-1]
        return flatten([last[position] for position in sorted(last)])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """One forward and one backward pass."""

    eq: Equilibrium
    g: Tensor
    """(B, D) gradient at the state."""
    u: Tensor
    """(B, D) what was handed to the graph of f."""
    num_products: int
    gradients: list[Tensor]
    """Of the parameters and of the first input."""


def run(cell: Case, *, solver, adjoint, f: Any = None) -> Pass:
    f, x = Overheard(cell.f if f is None else f), cell.inputs[0].clone().requires_grad_()
    with cell.computing():
        eq = fixed_point(f, cell.z0, x, *cell.inputs[1:], solver=solver, adjoint=adjoint)
    generator = torch.Generator().manual_seed(2)
    parts = leaves(eq.z)
    weights = [torch.randn(part.shape, generator=generator).to(part.dtype) for part in parts]
    sources = [*cell.f.parameters(), x]
    gradients = torch.autograd.grad(parts, sources, weights, materialize_grads=True, allow_unused=True)
    return Pass(eq=eq, g=flatten(weights), u=f.u, num_products=len(f.heard) - 1, gradients=list(gradients))


def run_near(cell: Case, adjoint) -> Pass:
    """Take a gradient near the equilibrium, where the dense Jacobian is known: a budget of one returns the start."""
    return run(dataclasses.replace(cell, z0=cell.near), solver=Picard(max_evals=1), adjoint=adjoint)


def relative(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the relative distance of two lists of tensors."""
    pairs = list(zip(actual, expected, strict=True))
    distance = math.sqrt(sum(float((a.double() - e.double()).square().sum()) for a, e in pairs))
    return distance / max(math.sqrt(sum(float(e.double().square().sum()) for e in expected)), 1e-30)


BACKWARD = {
    "gmres": GMRES(max_evals=40, tol=1e-3),
    "gmres-early": GMRES(max_evals=6, tol=1e-3),
    "anderson": Anderson(max_evals=30, tol=1e-2),
    "broyden": Broyden(max_evals=30, tol=1e-2),
    "picard": Picard(max_evals=30, tol=1e-2),
    "newton": NewtonKrylov(max_evals=30, tol=1e-2),
}


# All solvers in single precision, the default one in all precisions.
PAIRS = [(*c, backward) for c in CASES for backward in BACKWARD if c[2] == "float32" or backward == "gmres"]


@pytest.mark.parametrize(("name", "stage", "precision", "backward"), [param(*pair) for pair in PAIRS])
def test_implicit_is_within_what_its_residual_allows(name, stage, precision, backward):
    cell, solver = case(name, stage, precision), BACKWARD[backward]
    done = run_near(cell, Implicit(solver))
    report = done.eq.backward
    assert done.num_products == int(report.num_evals.max())
    assert torch.equal(report.converged, (report.residual <= solver.tol) & (report.status != Status.DIVERGED))
    image = torch.einsum("bij,bi->bj", jacobian(name, stage, precision), done.u) + done.g
    # Relative to g for GMRES, and to the image of u for all others.
    size = norms(done.g) if isinstance(solver, GMRES) else norms(image)
    noise = FEW_EPS * cell.eps * norms(done.u) * (1 + sigma(name, stage, precision))
    allowed = 1.01 * report.residual.double() * size + noise
    assert (norms(done.u - image) <= allowed).all()
    inverse, condition = resolvent(name, stage, precision)
    exact = torch.einsum("bij,bj->bi", inverse, done.g)
    # The inverse itself is only known up to its condition.
    assert (norms(done.u - exact) <= condition * (1.01 * allowed + 1e-13 * norms(exact))).all()
    check_sources(cell, done)


def check_sources(cell: Case, done: Pass) -> None:
    """Check that parameters and inputs get their share of u."""
    tolerance = cell.eps if cell.is_coarse else 1e4 * cell.eps
    if not cell.is_coarse:
        cell = twin(cell.name, cell.stage, cell.precision)
    x = cell.inputs[0].detach().requires_grad_()
    with torch.enable_grad(), cell.computing():
        image = leaves(cell.f(cell.near, x, *cell.inputs[1:]))
    u = leaves(unflatten(done.u, tuple(image)))
    sources = [*cell.f.parameters(), x]
    expected = torch.autograd.grad(image, sources, u, materialize_grads=True, allow_unused=True)
    assert relative(done.gradients, list(expected)) <= tolerance


@each_case
def test_one_step_hands_on_the_gradient_itself(name, stage, precision):
    cell = case(name, stage, precision)
    done = run_near(cell, OneStep())
    # Under autocast an image in half precision takes its gradient in half precision.
    assert (norms(done.u - done.g) <= (cell.eps if precision == "autocast" else 0) * norms(done.g)).all()
    assert done.num_products == 0 == int(done.eq.backward.num_evals.max())
    check_sources(cell, done)


SERIES = [(*c, 4, 0.5) for c in CASES]
SERIES += [(*pair, "float64", *series) for pair in NAMES for series in ((1, 0.5), (5, 1.0))]


@pytest.mark.parametrize(("name", "stage", "precision", "num_steps", "damping"), [param(*each) for each in SERIES])
def test_phantom_is_a_neumann_series(name, stage, precision, num_steps, damping):
    cell = case(name, stage, precision)
    done = run_near(cell, Phantom(num_steps=num_steps, damping=damping))
    J = jacobian(name, stage, precision)
    step = (1 - damping) * torch.eye(cell.dim, dtype=torch.float64) + damping * J.mT
    terms = [
        damping * (torch.linalg.matrix_power(step, power) @ done.g[:, :, None])[:, :, 0] for power in range(num_steps)
    ]
    growth = (1 - damping + damping * sigma(name, stage, precision)).clamp(min=1) ** num_steps
    allowed = FEW_EPS * cell.eps * num_steps * growth * norms(done.g)
    assert (norms(done.u - torch.stack(terms).sum(dim=0)) <= allowed).all()
    assert done.num_products == num_steps - 1 == int(done.eq.backward.num_evals.max())


@pytest.mark.parametrize("max_stretch", [math.inf, 1.3])
@pytest.mark.parametrize("precision", ["float64", "float32"])
@each_cell
def test_shine_applies_the_inverse_of_the_forward_solve(name, stage, precision, max_stretch):
    cell = case(name, stage, precision)
    f = Watched(cell.f)
    solver = Broyden(max_evals=9, tol=1e-2)
    done = run(cell, f=f, solver=solver, adjoint=Shine(max_stretch=max_stretch))
    H = -torch.eye(cell.dim, dtype=torch.float64).expand(BATCH, -1, -1)
    points, images = f.solved()
    for k in range(1, len(points)):
        s, y = points[k] - points[k - 1], (images[k] - points[k]) - (images[k - 1] - points[k - 1])
        # Broyden's good update of an inverse; a row that has finished stands still, and learns nothing.
        Hy, sH = torch.einsum("bij,bj->bi", H, y), torch.einsum("bi,bij->bj", s, H)
        slope = (s * Hy).sum(dim=1)
        update = (s - Hy)[:, :, None] * sH[:, None] / torch.where(slope == 0, 1, slope)[:, None, None]
        H = H + torch.where((slope == 0)[:, None, None], 0, update)
    u = -torch.einsum("bij,bi->bj", H, done.g)
    assert done.num_products == 0 == int(done.eq.backward.num_evals.max())
    stretch = norms(u) / norms(done.g)
    expected = torch.where((stretch <= max_stretch)[:, None], u, done.g)
    # Beside a state that has grown without bound, differences of residuals are rounding.
    is_clear = ((stretch / max_stretch - 1).abs() > 1e-3) & (done.eq.stats.status != Status.DIVERGED)
    tolerance = 1e-8 if precision == "float64" else 1e-2
    assert (norms(done.u - expected) <= tolerance * norms(expected))[is_clear].all()


class Watched:
    """A cell that remembers the evaluations of which no gradient is taken."""

    def __init__(self, f: Any) -> None:
        self._f, self._log = f, list[tuple[Tensor, Tensor]]()

    def __call__(self, z: Any, *inputs: Any) -> Any:
        image = self._f(z, *inputs)
        if not torch.is_grad_enabled():
            self._log.append((flatten(z), flatten(image)))
        return image

    def solved(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the (B, D) points and images."""
        return [z for z, _ in self._log], [fz for _, fz in self._log]


UNROLLED = [(*pair, solver) for pair in NAMES for solver in (Picard, Anderson, Broyden)]
UNROLLED += [("damped", stage, NewtonKrylov) for stage in ("fresh", "trained")]


@pytest.mark.parametrize(("name", "stage", "solver"), [param(*each) for each in UNROLLED])
def test_unrolled_is_the_derivative_of_what_the_solver_returns(name, stage, solver):
    cell = case(name, stage)
    x, direction = cell.inputs[0], torch.randn_like(cell.inputs[0])
    weights = torch.randn(BATCH, cell.dim, dtype=torch.float64)
    # Not at zero, where group normalization is all but a jump.
    start = unflatten(flatten(cell.near) / 2, cell.z0)

    def loss(x: Tensor) -> Tensor:
        limits = solver(max_evals=6, tol=0)
        eq = fixed_point(cell.f, start, x, *cell.inputs[1:], solver=limits, adjoint=Unrolled())
        return (flatten(eq.z) * weights).sum(dim=1)

    leaf = x.clone().requires_grad_()
    slope = (torch.autograd.grad(loss(leaf).sum(), leaf)[0] * direction).flatten(1).sum(dim=1)
    options = {"step": 1e-4, "tolerance": 1e-3} if solver is NewtonKrylov else {"step": 1e-6, "tolerance": 1e-6}
    check_slope(slope, lambda t: loss(x + t * direction), **options)


@pytest.mark.parametrize(("name", "stage"), [param(*pair) for pair in NAMES if not KINDS[pair[0]].is_singular])
def test_implicit_is_the_derivative_of_the_equilibrium(name, stage):
    cell = case(name, stage)
    z = flatten(cell.near)
    # Moved by a constant, so that the point is an equilibrium even where none of the cell itself is known.
    offset = z - flatten(cell.evaluate(cell.near))

    def f(z: Any, *inputs: Any) -> Any:
        return unflatten(flatten(cell.f(z, *inputs)) + offset, cell.z0)

    x, direction = cell.inputs[0], torch.randn_like(cell.inputs[0])
    weights = torch.randn(BATCH, cell.dim, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    adjoint = Implicit(GMRES(max_evals=2 * cell.dim, tol=1e-11, memory=2 * cell.dim))
    z_star = fixed_point(f, cell.near, leaf, *cell.inputs[1:], solver=Picard(max_evals=1), adjoint=adjoint).z
    slope = torch.autograd.grad((flatten(z_star) * weights).sum(), leaf)[0]
    transposed, _ = resolvent(name, stage)

    def loss(t: float) -> Tensor:
        moved = z
        # Newton's method with the inverse at the equilibrium.
        for _ in range(5):
            image = flatten(f(unflatten(moved, cell.z0), x + t * direction, *cell.inputs[1:]))
            moved = moved + torch.einsum("bij,bi->bj", transposed, image - moved)
        return (moved * weights).sum(dim=1)

    check_slope((slope * direction).flatten(1).sum(dim=1), loss, step=1e-7, tolerance=1e-5)


def check_slope(slope: Tensor, loss: Any, *, step: float, tolerance: float) -> None:
    """Compare slopes with central differences of two lengths, which tell together how far they can be trusted.

    Args:
        slope: (B,) derivatives at 0.
        loss: Maps t to (B,) values.
        step: The shorter length.
        tolerance: Relative, and absolute too.
    """
    with torch.no_grad():
        long, short = ((loss(h) - loss(-h)) / (2 * h) for h in (2 * step, step))
    size, doubt = short.abs() + 1, (long - short).abs()
    # Where the lengths disagree there is a kink between them, and no derivative to compare with.
    is_smooth = doubt <= 100 * tolerance * size
    assert is_smooth.any()
    assert ((slope - short).abs() <= tolerance * size + 3 * doubt)[is_smooth].all()
