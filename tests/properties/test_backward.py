"""What backward solves report is what a fresh product in float64 shows for the u that they return."""

import functools
import itertools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from properties.cells import BATCH, case, each_case, each_cell, jacobian, norms, sigma
from torch import Tensor

from steadeq import GMRES, Anderson, Broyden, Implicit, NewtonKrylov, Picard, SolveStats, Status
from steadeq._internal.linearization import Linearization
from steadeq.jacobian._products import linearize

pytestmark = pytest.mark.filterwarnings("ignore::steadeq.ConvergenceWarning")

# Most in single precision, which is what is used, and what errors grow fast in.
BUDGETS = {"float64": (20, 60), "float32": (5, 10, 20, 30, 60), "autocast": (25,), "bfloat16": (25,)}
TOLERANCES = {"float64": (1e-6,), "float32": (1e-1, 1e-2, 1e-3, 1e-4), "autocast": (1e-1,), "bfloat16": (1e-1,)}
NOISE = 4
"""In epsilons of ‖u‖ (1 + ‖J‖), what rounding may add to a residual."""


@dataclass(frozen=True, kw_only=True)
class System:
    """u = Jᵀu + g at the equilibrium of a cell, and a count of the products that were spent on it."""

    point: Linearization
    g: Tensor
    J: Tensor
    sigma: Tensor
    eps: float
    spent: list[int] = field(default_factory=list)

    def product(self, u: Tensor) -> Tensor:
        self.spent.append(1)
        return self.point.vjp(u)

    def solve(self, solver) -> tuple[Tensor, SolveStats]:
        self.spent.clear()
        with torch.no_grad():
            u, stats = Implicit(solver).cotangent(self.product, self.g, None)
        assert len(self.spent) == int(stats.num_evals.max()) <= solver.max_evals
        assert stats.trace.shape == (len(self.spent), BATCH)
        return u.double(), stats

    def image(self, u: Tensor) -> Tensor:
        """Return Jᵀu + g by a product in float64."""
        return torch.einsum("bij,bi->bj", self.J, u) + self.g.double()

    def residual(self, u: Tensor) -> Tensor:
        """Return ‖u - Jᵀu - g‖ / ‖g‖ by a product in float64."""
        return norms(u - self.image(u)) / norms(self.g)

    def noise(self, u: Tensor) -> Tensor:
        """Return what rounding may add to that."""
        return NOISE * self.eps * norms(u) * (1 + self.sigma) / norms(self.g)


@functools.cache
def system(name: str, stage: str, precision: str) -> System:
    cell = case(name, stage, precision)
    with cell.computing():
        point = linearize(cell.equilibrium)
    g = torch.randn(BATCH, cell.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # Of very different sizes, as gradients are: nothing may depend on them.
    g = (g * torch.tensor([[1.0], [1e-6], [1e4]])).to(point.layout.dtype)
    J, norm = jacobian(name, stage, precision), sigma(name, stage, precision)
    return System(point=point, g=g, J=J, sigma=norm, eps=cell.eps)


def check_status(stats: SolveStats, solver, noise: Tensor) -> None:
    has_diverged = stats.status == Status.DIVERGED
    # Beside a u that grew, ‖g‖ is small whatever it solves: that is no convergence.
    assert torch.equal(stats.converged, (stats.residual <= solver.tol) & ~has_diverged)
    is_spent = (stats.status == Status.MAX_EVALS) | has_diverged
    assert (stats.num_evals[is_spent] == solver.max_evals).all()
    assert (stats.status != Status.NON_FINITE).all()
    if solver.tol == 0:
        # The whole budget is spent unless nothing is left but rounding.
        assert (is_spent | (stats.residual <= noise)).all()


@each_case
def test_gmres_with_any_budget_and_restarts_and_more_of_it_is_never_worse(name, stage, precision):
    linear = system(name, stage, precision)
    check_ladder(linear, [GMRES(max_evals=budget, tol=0, memory=60) for budget in BUDGETS[precision]])
    if precision in ("float64", "float32"):
        check_ladder(linear, [GMRES(max_evals=budget, tol=0, memory=8) for budget in (8, 9, 30)])


def check_ladder(linear: System, solvers: list[GMRES]) -> None:
    before = torch.full((BATCH,), torch.inf, dtype=torch.float64)
    for solver in solvers:
        u, stats = linear.solve(solver)
        true, noise = linear.residual(u), linear.noise(u)
        assert ((stats.residual.double() - true).abs() <= 0.01 * true + noise).all(), solver
        assert (true <= 1.001 * before + noise).all(), solver
        assert (true <= 1 + noise).all(), solver
        check_status(stats, solver, noise)
        # A u that is smaller and as good, as far as rounding tells, may take the place of a larger one.
        before = true + noise


@each_case
def test_gmres_with_any_tolerance(name, stage, precision):
    linear = system(name, stage, precision)
    for tol in TOLERANCES[precision]:
        solver = GMRES(max_evals=60, tol=tol, memory=60)
        u, stats = linear.solve(solver)
        true, noise = linear.residual(u), linear.noise(u)
        assert ((stats.residual.double() - true).abs() <= 0.01 * true + noise).all(), tol
        assert (true <= 1.01 * tol + noise)[stats.converged].all(), tol
        check_status(stats, solver, noise)
        # No product too many: before the last one the tolerance was not reached.
        for row in range(BATCH):
            assert (stats.trace[: int(stats.num_evals[row]) - 1, row] > tol).all(), tol


@pytest.mark.parametrize("memory", [60, 8])
@each_cell
def test_gmres_finds_the_least_residual_of_its_krylov_space(name, stage, memory):
    for precision, max_evals in (("float64", 6), ("float64", 25), ("float32", 25)):
        linear = system(name, stage, precision)
        u, _ = linear.solve(GMRES(max_evals=max_evals, tol=0, memory=memory))
        # Where I - J is small, single precision wastes some products, in every implementation.
        num_wasted = 0 if precision == "float64" else 7
        least, best = least_residual(linear, max_evals - num_wasted, memory)
        assert (linear.residual(u) <= 1.01 * least + linear.noise(best)).all(), (precision, max_evals)


def least_residual(linear: System, num_products: int, memory: int) -> tuple[Tensor, Tensor]:
    """Solve by least squares on bases that are made orthogonal by a QR factorization at every step, in float64."""
    u, rest = torch.zeros_like(linear.g, dtype=torch.float64), linear.g.double()
    while num_products:
        vectors = (rest / norms(rest)[:, None])[:, :, None]
        count = min(memory, num_products, rest.shape[1])
        for _ in range(count - 1):
            image = torch.einsum("bij,bi->bj", linear.J, vectors[:, :, -1])
            vectors = torch.linalg.qr(torch.cat([vectors, image[:, :, None]], dim=2))[0]
        columns = vectors - torch.einsum("bij,bik->bjk", linear.J, vectors)
        weights = torch.linalg.lstsq(columns, rest[:, :, None], driver="gelsd").solution
        u = u + (vectors @ weights)[:, :, 0]
        rest = rest - (columns @ weights)[:, :, 0]
        if count == rest.shape[1]:
            break
        num_products -= count
    return norms(rest) / norms(linear.g), u


def rotated(eigenvalues: list[float], n: int = 12) -> Tensor:
    """Return matrices with some eigenvalues, the last of them as often as it takes."""
    values = torch.tensor(eigenvalues + [eigenvalues[-1]] * (n - len(eigenvalues)), dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(BATCH, n, n, generator=torch.Generator().manual_seed(5), dtype=torch.float64))[0]
    return Q @ torch.diag(values) @ Q.mT


EYE = torch.eye(12, dtype=torch.float64).expand(BATCH, -1, -1)
# Where I - J has no inverse, the last product of a Krylov space brings a column that depends on the others.
SINGULAR = {
    "I": EYE,
    "zero": 0 * EYE,
    "an eigenvalue 1": rotated([1.0, 0.5, -0.3, 0.2]),
    "half of them 1": rotated([0.7, 0.6, 0.5, 0.3, 0.2, 1.0]),
    "almost 1": rotated([1 - 1e-7, 0.5, -0.3, 0.2]),
    "a rotation": EYE - EYE.roll(1, dims=1),
    "two steps and 1": rotated([-1.0, 1.0]),
    "nilpotent": EYE - torch.diag(torch.ones(11, dtype=torch.float64), 1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", SINGULAR)
def test_gmres_where_the_system_is_singular(name, dtype):
    J = SINGULAR[name].to(dtype)
    g = torch.randn(BATCH, 12, generator=torch.Generator().manual_seed(6), dtype=torch.float64).to(dtype)
    linear = System(
        point=SimpleNamespace(vjp=lambda u: torch.einsum("bij,bi->bj", J, u)),
        g=g,
        J=J.double(),
        sigma=torch.linalg.matrix_norm(J.double(), 2),
        eps=torch.finfo(dtype).eps,
    )
    for memory in (30, 4):
        check_ladder(
            linear, [GMRES(max_evals=budget, tol=0, memory=memory) for budget in (1, 2, 3, 4, 5, 8, 12, 13, 25)]
        )
    # Nor is it worse once rounding is counted: no u is made huge for a residual that is hardly smaller.
    before = torch.full((BATCH,), torch.inf, dtype=torch.float64)
    for budget in (*range(1, 13), 25):
        u, _ = linear.solve(GMRES(max_evals=budget, tol=0, memory=30))
        total = linear.residual(u) + linear.noise(u)
        assert (total <= 1.01 * before).all(), budget
        before = total
    for tol in (1e-1, 1e-4):
        solver = GMRES(max_evals=25, tol=tol, memory=25)
        u, stats = linear.solve(solver)
        check_status(stats, solver, linear.noise(u))
        assert (linear.residual(u) <= 1.01 * tol + linear.noise(u))[stats.converged].all()


OTHERS = (Picard, Anderson, Broyden, NewtonKrylov)


@each_case
def test_other_solvers_relative_to_the_image(name, stage, precision):
    linear = system(name, stage, precision)
    limits = [{"max_evals": 20, "tol": 1e-2}]
    if precision == "float32":
        limits.append({"max_evals": 7, "tol": 0})
    for kind, options in itertools.product(OTHERS, limits):
        solver = kind(**options)
        u, stats = linear.solve(solver)
        image = norms(linear.image(u)) / norms(linear.g)
        true, noise = linear.residual(u) / image, linear.noise(u) / image
        assert ((stats.residual.double() - true).abs() <= 0.01 * true + noise).all(), solver
        check_status(stats, solver, noise)


@pytest.mark.parametrize("solver", [GMRES, *OTHERS])
def test_a_gradient_of_zero_has_the_solution_zero_and_leaves_its_neighbors_alone(solver):
    linear = system("text", "trained", "float32")
    alone, _ = linear.solve(solver(tol=1e-3))
    u, stats = replace(linear, g=linear.g * torch.tensor([[1], [0], [1]])).solve(solver(tol=1e-3))
    assert torch.equal(u[[0, 2]], alone[[0, 2]])
    assert not u[1].any()
    assert stats.residual[1] == 0
    assert stats.converged[1]


@pytest.mark.parametrize("name", SINGULAR)
def test_gmres_on_a_sample_does_not_depend_on_a_singular_neighbor(name):
    generator = torch.Generator().manual_seed(7)
    ordinary = 0.3 * torch.randn(2, 12, 12, generator=generator)
    g = torch.randn(2, 12, generator=generator)
    beside = torch.stack([ordinary[0], SINGULAR[name][0].float()])
    for budget in (4, 8, 12, 13):
        solver = GMRES(max_evals=budget, tol=0)
        (u, alone), (v, found) = (
            solver.solve_linear(lambda w, J=J: torch.einsum("bij,bi->bj", J, w), g) for J in (ordinary, beside)
        )
        assert torch.equal(u[0], v[0])
        assert torch.equal(alone.residual[0], found.residual[0])
