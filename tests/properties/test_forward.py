"""What forward solves report is what a fresh evaluation shows at the state that they return."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from properties.cells import BATCH, Case, case, cast, each_case, each_cell, flatten, norms, param, twin, unflatten
from stubs import Counted
from torch import Tensor

from steadeq import Anderson, Broyden, Equilibrium, NewtonKrylov, Picard, Status, fixed_point

pytestmark = pytest.mark.filterwarnings("ignore::steadeq.ConvergenceWarning")

SOLVERS = (Picard, Anderson, Broyden, NewtonKrylov)
# Budgets that are spent, and some that are often not.
SETTINGS = {
    "float64": [(15, 1e-6)],
    "float32": [(1, 1e-3), (9, 0), (20, 1e-3)],
    "autocast": [(8, 1e-1)],
    "bfloat16": [(8, 1e-1)],
}


class Watched(Counted):
    """Remembers images too."""

    def __init__(self, f: Any) -> None:
        super().__init__(f)
        self.images: list[Any] = []

    def __call__(self, z: Any, *inputs: Any) -> Any:
        self.images.append(super().__call__(z, *inputs))
        return self.images[-1]


def solve(cell: Case, solver, **options: Any) -> tuple[Equilibrium, Watched]:
    f = Watched(cell.f)
    with torch.no_grad(), cell.computing():
        return fixed_point(f, cell.z0, *cell.inputs, solver=solver, **options), f


def measure(z: Any, fz: Any) -> tuple[Tensor, Tensor]:
    """Return ‖f(z) - z‖ and ‖f(z)‖ in float64."""
    return norms(flatten(fz) - flatten(z)), norms(flatten(fz))


def check_status(eq: Equilibrium, solver) -> None:
    is_spent = (eq.stats.status == Status.MAX_EVALS) | (eq.stats.status == Status.DIVERGED)
    # What has run away stays within the tolerance to the end; see `check_growth`.
    assert torch.equal(eq.stats.converged, (eq.stats.residual <= solver.tol) & ~is_spent)
    assert (eq.stats.num_evals[is_spent] == solver.max_evals).all()
    assert (eq.stats.status != Status.NON_FINITE).all()
    assert (eq.stats.num_evals >= 1).all()
    if solver.tol == 0:
        assert (is_spent | (eq.stats.residual == 0)).all()


@each_case
def test_the_residual_is_that_of_the_state(name, stage, precision):
    cell = case(name, stage, precision)
    for solver, (max_evals, tol) in itertools.product(SOLVERS, SETTINGS[precision]):
        limits = solver(max_evals=max_evals, tol=tol)
        eq, f = solve(cell, limits, compact=False)
        g, image = measure(eq.z, cell.evaluate(eq.z))
        # Evaluations are repeated to the last bit; only the norms are rounded, those of matrices in single precision.
        rounding = 0.0 if precision == "float64" else 4 * torch.finfo(torch.float32).eps
        assert ((eq.stats.residual - g / image).abs() <= 1e-5 * g / image + rounding).all(), limits
        check_status(eq, limits)
        num_evals = int(eq.stats.num_evals.max())
        # The first time that samples of a cell stop one after the other, one more evaluation looks at all of them.
        assert f.calls in (num_evals, num_evals + 1)
        assert f.calls <= max_evals
        for log in (f.points, f.images, f.rows):
            del log[num_evals:]
        check_trace(eq, f, g, image)
        check_growth(eq, f, tol)


def check_growth(eq: Equilibrium, f: Watched, tol: float) -> None:
    """Check that what is said to have diverged has grown without getting nearer, and what converged has not."""
    norm, image = measure(f.points[0], f.images[0])
    size = torch.maximum(norms(flatten(f.points[0])), image)
    for row, status in enumerate(eq.stats.status.tolist()):
        step = int(eq.stats.num_evals[row]) - 1
        norm_now, image_now = measure(f.points[step], f.images[step])
        has_grown = image_now[row] > 29.9 * size[row]
        is_within = eq.stats.residual[row] <= tol
        # A difference that rounding at the size of the image may hide counts as that large.
        rounding = torch.finfo(torch.float32).eps * image_now[row]
        if status == Status.DIVERGED or (status == Status.MAX_EVALS and is_within):
            assert has_grown
            assert norm_now[row] + rounding > 0.099 * norm[row]
        if status == Status.CONVERGED:
            assert image_now[row] < 30.1 * size[row] or norm_now[row] <= 0.101 * norm[row]


def check_trace(eq: Equilibrium, f: Watched, g: Tensor, image: Tensor) -> None:
    """Check the trace against all points that were evaluated, and that the best of them is the state.

    Args:
        eq: What was found.
        f: What was evaluated for it.
        g: ‖f(z) - z‖ of the state.
        image: ‖f(z)‖ of the state.
    """
    assert eq.stats.trace.shape == (f.calls, BATCH)
    z = flatten(eq.z)
    is_among = torch.zeros(BATCH, dtype=torch.bool)
    for step, (point, image_of_point) in enumerate(zip(f.points, f.images, strict=True)):
        is_running = step < eq.stats.num_evals
        g_step, image_step = measure(point, image_of_point)
        close = (eq.stats.trace[step] - g_step / image_step).abs() <= 1e-5 * g_step / image_step + 1e-6
        assert close[is_running].all(), step
        is_among |= is_running & (flatten(point) == z).all(dim=1)
        # No other point is better by both measures, ‖g‖ and ‖g‖ / ‖f‖.
        dominates = (g_step < 0.999 * g) & (g_step / image_step < 0.999 * g / image)
        assert not dominates[is_running].any(), step
    assert is_among.all()
    last = eq.stats.trace.gather(0, eq.stats.num_evals[None] - 1)[0]
    assert torch.equal(eq.stats.trace[-1], last)
    assert torch.equal(eq.stats.residual[eq.stats.converged], last[eq.stats.converged])


@each_cell
def test_in_float32_it_is_that_of_the_map_in_float64_and_samples_may_leave_the_batch(name, stage):
    cell, wide = case(name, stage, "float32"), twin(name, stage, "float32")
    for solver in SOLVERS:
        limits = solver(max_evals=12, tol=3e-2)
        eq, f = solve(cell, limits, compact=True)
        z = cast(eq.z, torch.float64)
        g, image = measure(z, wide.evaluate(z))
        assert ((eq.stats.residual - g / image).abs() <= 0.01 * g / image + 100 * cell.eps).all(), limits
        check_status(eq, limits)
        # Whoever finishes leaves at once, as one of three is more than a quarter. The first time that a cell is seen,
        # one more evaluation tells whether those who stayed noticed.
        assert sum(f.rows) - int(eq.stats.num_evals.sum()) in (0, BATCH), limits


# Attracting equilibria that are known to the last digit.
SMOOTH = ("mlp", "damped", "monotone-forward", "post-ln", "text-pre")


@pytest.mark.parametrize("name", [param(name) for name in SMOOTH])
def test_close_to_an_equilibrium_everything_is_faster_than_plain_iteration(name):
    cell = case(name, "fresh")
    z = flatten(cell.near)
    nearby = unflatten(z + 1e-5 * norms(z)[:, None] * torch.randn_like(z) / z.shape[1] ** 0.5, cell.z0)
    cell = dataclasses.replace(cell, z0=nearby)
    plain, _ = solve(cell, Picard(max_evals=60, tol=1e-15))
    # Slow, but not at a standstill.
    assert (plain.stats.status == Status.MAX_EVALS).all()
    assert (plain.stats.residual < 0.5 * plain.stats.trace[0]).all()
    for solver in (Anderson(max_evals=40, tol=0), Broyden(max_evals=40, tol=0), NewtonKrylov(max_evals=40, tol=0)):
        eq, _ = solve(cell, solver)
        assert (eq.stats.residual <= 0.1 * plain.stats.trace[39] + 1e-13).all(), solver
