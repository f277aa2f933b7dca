"""Fixed-point and root problems of other people's test suites and papers, translated from their mathematics.

A root problem F(z) = 0 becomes two fixed-point problems, f(z) = z + c F(z) and f(z) = z - c F(z), with the first step
size that scipy takes, c = max(‖z0‖, 1) / (2 ‖F(z0)‖). The signs are the last letter of their names; most often one of
the two expands. Random matrices are drawn here, of the suite's distribution: problems are alike, not equal.

Sources:
    optimistix: tests/helpers.py, the fixed-point problems; max |f - z| <= 1e-5, as its test of root finders asks for.
    jaxopt: tests of FixedPointIteration, AndersonAcceleration and Broyden, with their tolerances.
    scipy: scipy/optimize/tests/test_nonlin.py (max |F| <= 1e-2, or 1e-6 for the linear ones) and test_minpack.py.
    sciml: the 23 problems of NonlinearProblemLibrary, after Moré, Garbow and Hillstrom (1981) and Burkardt's
        test_nonlin; max |F| <= 1e-4, as in the tests of NonlinearSolve.
    FixedPoint: the R package by Baumann and Klymak; max |f - z| below the threshold of each of its tests.
    cvxgrp: the tests of the package aa (Anderson acceleration in C), by distance to the known solution.
    Lepage-Saucier: FixedPointTestProblems, ‖f - z‖ <= 1e-8.
    Toth-Kelley 2015, Walker-Ni 2011, Fang-Saad 2009, Kelley 1995: residuals reduced by the factor of the paper.
    steadeq: cases in which this library once went wrong.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]
Criterion = Callable[..., bool]
"""Called with a point, its image, and optionally by which factor to tighten the limit."""


@dataclass(frozen=True, kw_only=True)
class PeerProblem:
    """Find z = f(z) from the (1, D) state z0.

    A point counts as solved if `is_solved(z, f(z))`, the suite's own criterion. `exact` is a known solution, if the
    suite gives one; `tol` is a relative residual about as strict as the criterion, to run a solver with.
    """

    name: str
    source: str
    f: Map
    z0: Tensor
    is_solved: Criterion
    tol: float
    exact: Tensor | None = None
    has_solution: bool = True
    num_picard: int | None = None
    """How many evaluations plain iteration takes to meet the criterion, where the suite prints it."""

    @property
    def dim(self) -> int:
        """How many unknowns there are."""
        return self.z0.shape[1]

    @property
    def is_zero_solution(self) -> bool:
        """Whether z = 0 is a solution: no residual is small relative to it."""
        return self.exact is not None and not self.exact.any()


class StopError(Exception):
    """Ends a solve from inside of f."""


class Watched:
    """The map of a problem, which ends the solve at the first point that is solved, or at the budget.

    Evaluations are counted in `num_evals`; `is_reached` says which of the two it was.
    """

    def __init__(self, problem: PeerProblem, budget: int) -> None:
        self._problem, self._budget = problem, budget
        self.num_evals, self.is_reached = 0, False

    def __call__(self, z: Tensor) -> Tensor:
        self.charge(1)
        fz = self._problem.f(z)
        if self._problem.is_solved(z, fz):
            self.is_reached = True
            raise StopError
        return fz

    def jacobian(self, z: Tensor) -> Tensor:
        """Return the (D, D) Jacobian at the (1, D) point z, and charge D evaluations."""
        self.charge(z.shape[1])
        return torch.autograd.functional.jacobian(self._problem.f, z)[0, :, 0]

    def charge(self, num_evals: int) -> None:
        """Count evaluations, as long as the budget lasts."""
        self.num_evals += num_evals
        if self.num_evals > self._budget:
            raise StopError


def num_evals_to_reach(
    run: Callable[[Watched, Tensor], object],
    problem: PeerProblem,
    budget: int,
    *,
    may_raise: type[Exception] = StopError,
) -> int | None:
    """Return the number of the first evaluation at a point that is solved, or None if there is no such point.

    Args:
        run: Solves from a start until the watched map stops it, or until it gives up.
        problem: What is to be solved.
        budget: The most evaluations.
        may_raise: Errors that count as giving up.
    """
    watched = Watched(problem, budget)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            run(watched, problem.z0)
    except (StopError, may_raise):
        pass
    return watched.num_evals if watched.is_reached else None


def within(limit: float, *, order: float = math.inf) -> Criterion:
    """Return the criterion ‖f(z) - z‖ <= limit, in the norm of the given order."""
    return lambda z, fz, room=1.0: bool(torch.linalg.vector_norm((fz - z).double(), ord=order) <= room * limit)


def near(exact: Tensor, limit: float) -> Criterion:
    """Return the criterion ‖z - exact‖ <= limit."""
    return lambda z, fz, room=1.0: bool(torch.linalg.vector_norm(z.double() - exact) <= room * limit)


def both(*criteria: Criterion) -> Criterion:
    """Return the criterion that all of the given ones hold."""
    return lambda z, fz, room=1.0: all(criterion(z, fz, room) for criterion in criteria)


def _point(
    name: str, source: str, f: Map, z0: Tensor, is_solved: Criterion, tol: float, exact: Tensor | None = None
) -> PeerProblem:
    return PeerProblem(name=name, source=source, f=f, z0=z0, is_solved=is_solved, tol=tol, exact=exact)


def _row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def _full(dim: int, value: float) -> Tensor:
    return torch.full((1, dim), value, dtype=torch.float64)


def _range(first: int, last: int) -> Tensor:
    return torch.arange(first, last + 1, dtype=torch.float64)


def _randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _rand(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _columns(*columns: Tensor) -> Tensor:
    return torch.stack(columns, dim=1)


def _affine(matrix: Tensor, b: Tensor) -> Map:
    return lambda z: z @ matrix.to(z).T + b.to(z)


def _roots(
    name: str, source: str, F: Map, z0: Tensor, limit: float, *, step: float | None = None, exact: Tensor | None = None
) -> list[PeerProblem]:
    """Return both fixed-point problems of a root problem that is solved at max |F| <= limit."""
    start = torch.linalg.vector_norm(F(z0)).item()
    c = step if step is not None else 0.5 * max(torch.linalg.vector_norm(z0).item(), 1.0) / start
    size = 1.0 if exact is None or not exact.any() else torch.linalg.vector_norm(exact).item()
    return [
        PeerProblem(
            name=name + sign,
            source=source,
            f=lambda z, step=c * factor: z + step * F(z),
            z0=z0,
            is_solved=within(limit * c),
            tol=min(1e-3, limit * c / size),
            exact=exact,
        )
        for sign, factor in (("+", 1.0), ("-", -1.0))
    ]


# SciML: the 23 problems. Indices run from 1 in the literature and from 0 here.


def _rosenbrock(x: Tensor) -> Tensor:
    return torch.cat([1 - x[:, :1], 10 * (x[:, 1:] - x[:, :-1] ** 2)], dim=1)


def _powell_singular(x: Tensor) -> Tensor:
    a, b, c, d = x.unbind(1)
    return _columns(a + 10 * b, math.sqrt(5) * (c - d), (b - 2 * c) ** 2, math.sqrt(10) * (a - d) ** 2)


def _powell_badly_scaled(x: Tensor) -> Tensor:
    a, b = x.unbind(1)
    return _columns(1e4 * a * b - 1, torch.exp(-a) + torch.exp(-b) - 1.0001)


def _wood(x: Tensor) -> Tensor:
    a, b, c, d = x.unbind(1)
    u, v = b - a**2, d - c**2
    return _columns(
        -200 * a * u - (1 - a),
        200 * u + 20.2 * (b - 1) + 19.8 * (d - 1),
        -180 * c * v - (1 - c),
        180 * v + 20.2 * (d - 1) + 19.8 * (b - 1),
    )


def _helical_valley(x: Tensor) -> Tensor:
    a, b, c = x.unbind(1)
    turn = torch.atan(b / a) / (2 * math.pi) + torch.where(a < 0, 0.5, 0.0)
    turn = torch.where(a == 0, 0.25 * b.sign(), turn)
    return _columns(10 * (c - 10 * turn), 10 * (torch.hypot(a, b) - 1), c)


def _watson(x: Tensor) -> Tensor:
    """Half of the gradient of Watson's sum of squares."""
    powers = torch.arange(x.shape[1], dtype=x.dtype)
    t = (torch.arange(1, 30, dtype=x.dtype) / 29)[:, None]
    basis = t**powers
    slopes = powers * t ** (powers - 1)
    value = x @ basis.T
    residual = x @ slopes.T - value**2 - 1
    image = (residual[:, :, None] * (slopes - 2 * value[:, :, None] * basis)).sum(1)
    last = x[:, 1] - x[:, 0] ** 2 - 1
    extra = _columns(x[:, 0] * (1 - 2 * last), last)
    return image + torch.nn.functional.pad(extra, (0, x.shape[1] - 2))


def _chebyquad(x: Tensor) -> Tensor:
    """Means of the first Chebyshev polynomials, less their integrals over [-1, 1]."""
    dim = x.shape[1]
    before, now, means = torch.ones_like(x), x, []
    for degree in range(1, dim + 1):
        means.append(now.mean(1) + (1 / (degree**2 - 1) if degree % 2 == 0 else 0.0))
        before, now = now, 2 * x * now - before
    return torch.stack(means, dim=1)


def _brown_almost_linear(x: Tensor) -> Tensor:
    head = x[:, :-1] + x.sum(1, keepdim=True) - (x.shape[1] + 1)
    return torch.cat([head, x.prod(1, keepdim=True) - 1], dim=1)


def _neighbors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the components before and after each one, with zeros beyond the ends."""
    return torch.nn.functional.pad(x, (1, 0))[:, :-1], torch.nn.functional.pad(x, (0, 1))[:, 1:]


def _boundary_value(x: Tensor) -> Tensor:
    h = 1 / (x.shape[1] + 1)
    t = h * torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    before, after = _neighbors(x)
    return 2 * x - before - after + 0.5 * h**2 * (x + t + 1) ** 3


def _integral_equation(x: Tensor) -> Tensor:
    """Both sums of the suite take in the term j = k."""
    h = 1 / (x.shape[1] + 1)
    t = h * torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    cubes = (x + t + 1) ** 3
    left = (t * cubes).cumsum(1)
    right = ((1 - t) * cubes).flip(1).cumsum(1).flip(1)
    return x + 0.5 * h * ((1 - t) * left + t * right)


def _trigonometric(x: Tensor) -> Tensor:
    k = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    return x.shape[1] - x.cos().sum(1, keepdim=True) + k * (1 - x.cos()) - x.sin()


def _variably_dimensioned(x: Tensor) -> Tensor:
    k = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    total = (k * (x - 1)).sum(1, keepdim=True)
    return x - 1 + k * total * (1 + 2 * total**2)


def _broyden_tridiagonal(x: Tensor) -> Tensor:
    before, after = _neighbors(x)
    return (3 - 2 * x) * x + 1 - before - 2 * after


def _broyden_banded(x: Tensor) -> Tensor:
    ones = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype)
    band = ones.tril(1).triu(-5) - torch.eye(x.shape[1], dtype=x.dtype)
    return x * (2 + 5 * x**2) + 1 - (x * (1 + x)) @ band.T


def _hammarling(size: int) -> Map:
    """X X = A with A = 1e-4 I and a one in the corner: the square root is nearly defective."""

    def F(x: Tensor) -> Tensor:
        X = x.view(-1, size, size)
        A = 1e-4 * torch.eye(size, dtype=x.dtype)
        A[0, 1] = 1.0
        return (X @ X - A).flatten(1)

    return F


def _sample_18(x: Tensor) -> Tensor:
    a, b = x.unbind(1)

    def quotient(a: Tensor) -> Tensor:
        """(1 - exp(-a²)) / a, which is 0 at 0."""
        return -torch.expm1(-(a**2)) / torch.where(a == 0, 1.0, a)

    return _columns(b**2 * quotient(a), a * quotient(b))


def _freudenstein_roth(x: Tensor) -> Tensor:
    a, b = x.unbind(1)
    return _columns(a - b**3 + 5 * b**2 - 2 * b - 13, a + b**3 + b**2 - 14 * b - 29)


def _boggs(x: Tensor) -> Tensor:
    a, b = x.unbind(1)
    return _columns(a**2 - b + 1, a - torch.cos(0.5 * math.pi * b))


def _chandrasekhar(dim: int, c: float, offset: float) -> Map:
    """The H-equation 1 / (1 - c/2 ∫ µ H(ν) / (µ + ν) dν) with a rectangle rule at (i - offset) / dim."""
    mu = (_range(1, dim) - offset) / dim
    matrix = 0.5 * c / dim * mu[:, None] / (mu[:, None] + mu)
    return lambda z: 1 / (1 - z @ matrix.to(z).T)


def _sciml() -> list[PeerProblem]:
    ten = _range(1, 10)[None]
    table: list[tuple[str, Map, Tensor, Tensor | None]] = [
        ("P1 generalized Rosenbrock", _rosenbrock, torch.cat([_row(-1.2), _full(9, 1.0)], 1), _full(10, 1.0)),
        ("P2 Powell singular", _powell_singular, _row(3, -1, 0, 1), _full(4, 0.0)),
        ("P3 Powell badly scaled", _powell_badly_scaled, _row(0, 1), None),
        ("P4 Wood", _wood, _row(-3, -1, -3, -1), _full(4, 1.0)),
        ("P5 helical valley", _helical_valley, _row(-1, 0, 0), _row(1, 0, 0)),
        ("P6 Watson", _watson, _row(0, 0), None),
        ("P7 Chebyquad", _chebyquad, _row(0, 2 / 3), _row(-1 / math.sqrt(3), 1 / math.sqrt(3))),
        ("P8 Brown almost linear", _brown_almost_linear, _full(10, 0.5), _full(10, 1.0)),
        ("P9 discrete boundary value", _boundary_value, ten * (ten - 11) / 121, None),
        ("P10 discrete integral equation", _integral_equation, ten * (ten - 11) / 121, None),
        ("P11 trigonometric", _trigonometric, _full(10, 0.1), None),
        ("P12 variably dimensioned", _variably_dimensioned, 1 - ten / 10, _full(10, 1.0)),
        ("P13 Broyden tridiagonal", _broyden_tridiagonal, _full(10, -1.0), None),
        ("P14 Broyden banded", _broyden_banded, _full(10, -1.0), None),
        ("P15 Hammarling 2 x 2", _hammarling(2), torch.eye(2).double().view(1, 4), _row(0.01, 50, 0, 0.01)),
        (
            "P16 Hammarling 3 x 3",
            _hammarling(3),
            torch.eye(3).double().view(1, 9),
            _row(0.01, 50, 0, 0, 0.01, 0, 0, 0, 0.01),
        ),
        (
            "P17 Dennis-Schnabel",
            lambda x: _columns(x.sum(1) - 3, (x**2).sum(1) - 9),
            _row(1, 5),
            _row(0, 3),
        ),
        ("P18 sample", _sample_18, _row(2, 2), _row(0, 0)),
        ("P19 sample", lambda x: x * (x**2).sum(1, keepdim=True), _row(3, 3), _row(0, 0)),
        ("P20 scalar", lambda x: x * (x - 5) ** 2, _row(1), _row(0)),
        ("P21 Freudenstein-Roth", _freudenstein_roth, _row(0.5, -2), _row(5, 4)),
        ("P22 Boggs", _boggs, _row(1, 0), _row(0, 1)),
        ("P23 Chandrasekhar", lambda x: x - _chandrasekhar(10, 0.9, 0.0)(x), _full(10, 1.0), None),
    ]
    return [problem for name, F, z0, exact in table for problem in _roots(name, "sciml", F, z0, 1e-4, exact=exact)]


# scipy


def _scipy_f6(x: Tensor) -> Tensor:
    a, b = x.unbind(1)
    jacobian = torch.tensor([[-4.256, 14.7], [0.8394989, 0.59964207]], dtype=x.dtype)
    v = _columns((a + 3) * (b**5 - 7) + 18, torch.sin(b * torch.exp(a) - 1))
    return -torch.linalg.solve(jacobian, v.T).T


def _scipy() -> list[PeerProblem]:
    weights, laplacian = _row(3, 2, 1.5, 1, 0.5), torch.tensor([[-2.0, 1, 0], [1, -2, 1], [0, 1, -2]]).double()
    right = _row(1, 2, 3)
    found = [
        *_roots(
            "F cubic", "scipy", lambda x: -weights * x - 0.01 * (x**2).sum() * x, _full(5, 1.0), 1e-2, exact=_full(5, 0)
        ),
        *_roots("F2 identity", "scipy", lambda x: x, _range(1, 6)[None], 1e-2, exact=_full(6, 0)),
        *_roots("F3 tridiagonal", "scipy", lambda x: x @ laplacian - right, right, 1e-2),
        *_roots("F4 Powell", "scipy", _powell_badly_scaled, _row(-1, -2), 1e-2),
        *_roots(
            "F5 pressure network",
            "scipy",
            lambda x: torch.cat([0.5 * (x[:, 1:] ** 2 - x[:, :1] ** 2), x.sum(1, keepdim=True) - 4], 1),
            _row(2, 0, 2, 0),
            1e-2,
            exact=_full(4, 1.0),
        ),
        *_roots("F6 steep", "scipy", _scipy_f6, _row(-0.5, 1.4), 1e-2),
        _point("F2 from its root", "scipy", lambda z: 2 * z, _full(6, 0.0), within(1e-2), 1e-3, _full(6, 0.0)),
    ]
    for dim in (20, 40):
        A, b = _randn(dim, dim, seed=123), _randn(1, dim, seed=124)
        exact = torch.linalg.solve(A, b.T).T
        # The suite starts from the inverse -I here.
        found += _roots(f"linear N={dim}", "scipy", _affine(A, -b), _full(dim, 0.0), 1e-6, step=1.0, exact=exact)
    # The tests of fixed_point.
    found += [
        _point("doubling", "scipy", lambda z: 2 * z, _row(1.0), near(_row(0), 1e-8), 1e-8, _row(0)),
        _point("square", "scipy", lambda z: z**2, _row(1.05), near(_row(1), 1e-8), 1e-9, _row(1)),
        _point(
            "square root",
            "scipy",
            lambda z: torch.sqrt(_row(10, 12).to(z) / (z + _row(3, 5).to(z))),
            _row(1.2, 1.3),
            near(_row(1.4920333, 1.37228132), 1e-7),
            1e-8,
        ),
        _point(
            "Lambert W",
            "scipy",
            lambda z: 0.5 * torch.exp(-2 * z),
            _row(1.0),
            near(_row(0.5671432904097838 / 2), 1e-8),
            1e-8,
            _row(0.5671432904097838 / 2),
        ),
    ]
    return found


# jaxopt


def _rotate(angles: Tensor, stretch: float = 1.0) -> Tensor:
    blocks = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], 1).view(-1, 2, 2)
    return stretch * torch.block_diag(*blocks)


def _symmetric(dim: int, seed: int) -> Tensor:
    M = 2 * _rand(dim, dim, seed=seed) - 1
    M = M + M.T
    return M / (2 * torch.linalg.eigvalsh(M).abs().max())


def _sin_cubic(z: Tensor) -> Tensor:
    return torch.cat([z[:, :3].sin() * z[:, :3] ** 2, z[:, 3:5] ** 3, -z[:, 5:]], 1)


def _jaxopt() -> list[PeerProblem]:
    decay = _row(0.9, 0.99, 0.999)
    start = _row(0.6, 0, -0.1, 0.7, 0.5, -1 / 3, 0, 2 / 3, -0.4 / 3)
    cos = _row(0.7390851332151607, math.pi / 2)
    theta, center = math.pi / _row(2, 3, 4, 5, 6, 1.27, 1.73)[0], _range(1, 14)[None]
    turn = _rotate(theta)
    found = [
        _point(
            "geometric decay",
            "jaxopt",
            lambda z: decay.to(z) * z,
            _row(1, 0.4, -0.2),
            both(within(1e-5, order=2), near(_full(3, 0), 1e-2)),
            1e-5,
            _full(3, 0),
        ),
        _point("scalar", "jaxopt", lambda z: 0.5 * z + 0.5, _row(0), within(1e-4), 1e-4, _row(1)),
        _point(
            "sin cubic",
            "jaxopt",
            _sin_cubic,
            start[:, :5],
            both(within(1e-6, order=2), near(_full(5, 0), 1e-6)),
            1e-6,
            _full(5, 0),
        ),
        _point("sin cubic, residual only", "jaxopt", _sin_cubic, start[:, :5], within(1e-6, order=2), 1e-6),
        _point(
            "sin cubic reflection",
            "jaxopt",
            _sin_cubic,
            start,
            both(within(1e-6, order=2), near(_full(9, 0), 1e-6)),
            1e-6,
            _full(9, 0),
        ),
        _point(
            "shifted cos",
            "jaxopt",
            lambda z: z.cos() + _row(0, math.pi / 2).to(z),
            _row(0.3, math.pi / 4),
            both(within(1e-6, order=2), near(cos, 1e-5)),
            1e-6,
            cos,
        ),
        _point(
            "rotations",
            "jaxopt",
            lambda z: (z - center.to(z)) @ turn.to(z).T + center.to(z),
            _rand(1, 14, seed=1),
            both(within(1e-4, order=2), near(center, 1e-3)),
            1e-6,
            center,
        ),
        _point(
            "flat landscape",
            "jaxopt",
            lambda z: _row(0.05, 0.2).to(z) * z,
            _row(1, -0.5),
            within(1e-6, order=2),
            1e-6,
            _row(0, 0),
        ),
    ]
    for dim in (10, 200):
        M, b = _symmetric(dim, seed=2), _rand(1, dim, seed=3)
        found.append(
            PeerProblem(
                name=f"random affine n={dim}",
                source="jaxopt",
                f=_affine(M, b),
                z0=_full(dim, 0.0),
                is_solved=within(1e-6, order=2),
                tol=1e-6 if dim == 10 else 1e-7,
                exact=torch.linalg.solve(torch.eye(dim).double() - M, b.T).T,
            )
        )
    return found


# optimistix


def _robertson(y: Tensor) -> Tensor:
    a, b, c = y.unbind(1)
    return _columns(-0.04 * a + 1e4 * b * c, 0.04 * a - 3e7 * b**2 - 1e4 * b * c, 3e7 * b**2)


def _optimistix() -> list[PeerProblem]:
    matrix = _randn(28, 28, seed=19)
    inner, outer = (2 * _rand(8, 29, seed=42) - 1) / math.sqrt(28), (2 * _rand(28, 9, seed=43) - 1) / math.sqrt(8)
    x = torch.linspace(-1, 1, 100, dtype=torch.float64)[None]
    half, ones, dt = _full(28, 0.5), _full(3, 1.0), 1e-8
    # The suite's "Laplacian" returns its argument, so that the step is 1/2 (2 x² + (1 - x²) x² - x⁴ + (1 - z) z) there.
    heat = x**2 + 0.5 * (1 - x**2) * x**2

    def network(z: Tensor) -> Tensor:
        hidden = torch.nn.functional.softplus(z @ inner[:, :28].to(z).T + inner[:, 28].to(z))
        return 0.1 * (hidden @ outer[:, :8].to(z).T + outer[:, 8].to(z))

    table: list[tuple[str, Map, Tensor, Tensor | None]] = [
        ("cos", torch.cos, half, _full(28, 0.7390851332151607)),
        ("exponential", lambda z: torch.exp(-z), half, _full(28, 0.5671432904097838)),
        ("network", network, half, None),
        ("heat equation", lambda z: heat.to(z) + 0.5 * (1 - z) * z, _full(100, 1.0), None),
        # In "k-space" it is the same map as in "f-space".
        ("linear midpoint y", lambda z: z @ matrix.to(z).T / 32, half, _full(28, 0)),
        ("linear midpoint f", lambda z: z @ matrix.to(z).T / 16, half, _full(28, 0)),
        ("Robertson midpoint y", lambda z: dt * _robertson(0.5 * z), ones, _full(3, 0)),
        ("Robertson midpoint f", lambda z: _robertson(dt * z), ones, _full(3, 0)),
        ("Robertson midpoint k", lambda z: dt * _robertson(z), ones, _full(3, 0)),
    ]
    return [
        PeerProblem(
            name=name,
            source="optimistix",
            f=f,
            z0=z0,
            is_solved=within(1e-5),
            tol=1e-5,
            exact=exact,
        )
        for name, f, z0, exact in table
    ]


# FixedPoint, the R package


def _simple_vector(z: Tensor) -> Tensor:
    return _columns(0.5 * z.sum(1).abs().sqrt(), 1.5 * z[:, 0] + 0.5 * z[:, 1])


def _leaves_domain(z: Tensor) -> Tensor:
    return _columns(0.5 * z.sum(1).sqrt(), 1.5 * z[:, 0] + 0.5 * z[:, 1])


def _constant_increments(z: Tensor) -> Tensor:
    """The first component comes closer to 4 by 1 each time, the second halves its distance to 2.3."""
    first = 4 - z[:, 0]
    return _columns(z[:, 0] + first.clamp(-1, 1), z[:, 1] + (2.3 - z[:, 1]) / 2)


def _diffusion(z: Tensor) -> Tensor:
    """Each square of a 10 x 10 grid takes the mean of itself and its neighbors; two corners are held."""
    grid = z.view(-1, 1, 10, 10)
    kernel = torch.tensor([[0.0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=z.dtype)[None, None]
    conv = torch.nn.functional.conv2d
    mean = (conv(grid, kernel, padding=1) / conv(torch.ones_like(grid), kernel, padding=1)).flatten(1)
    return torch.cat([torch.ones_like(z[:, :1]), mean[:, 1:-1], torch.zeros_like(z[:, :1])], 1)


def _perpetual_put() -> Map:
    """The value of an American put that never expires, on 100 prices with linear interpolation between them."""
    d, sigma, strike, chi = 0.05, 0.1, 10.0, 1.0
    p = (math.exp(d) - math.exp(-sigma)) / (math.exp(sigma) - math.exp(-sigma))
    prices = torch.linspace(0, 20, 100, dtype=torch.float64)
    interpolate = torch.zeros(100, 100, dtype=torch.float64)
    for weight, factor in ((p, math.exp(sigma)), (1 - p, math.exp(-sigma))):
        position = (prices * factor / 20 * 99).clamp(max=99)
        left = position.floor().clamp(max=98).long()
        rows = torch.arange(100)
        interpolate[rows, left] += weight * (1 - (position - left))
        interpolate[rows, left + 1] += weight * (position - left)
    exercise = (strike - prices).clamp(min=0)[None]

    def f(z: Tensor) -> Tensor:
        holding = z @ interpolate.to(z).T
        holding = torch.cat([holding[:, :-1], torch.full_like(z[:, :1], chi)], 1)
        return torch.maximum(math.exp(-d) * holding, exercise.to(z))

    return f


def _exchange_economy() -> Map:
    """Prices at which 8 households with logarithmic utility want what they have of 10 goods."""
    endowments, tastes = _randn(10, 8, seed=3112).exp(), _rand(10, 8, seed=3113)

    def f(z: Tensor) -> Tensor:
        values = (z @ endowments.to(z)) / tastes.sum(0).to(z)
        prices = (values @ tastes.T.to(z)) / endowments.sum(1).to(z)
        return prices / prices[:, :1]

    return f


def _fixed_point() -> list[PeerProblem]:
    six, cos = _row(0.3, 0.4, 0.5, 0.6, 0.7, 0.8), 0.7390851332151607
    hundred = _range(1, 100)[None]
    put_start = torch.linspace(10, 1, 100, dtype=torch.float64)[None]
    table: list[tuple[str, Map, Tensor, float, Tensor | None, int | None]] = [
        ("Babylonian", lambda z: 0.5 * (z + 100 / z), _row(6), 1e-10, _row(10), 6),
        ("Babylonian 1 to 100", lambda z: 0.5 * (z + hundred / z), hundred, 1e-10, hundred.sqrt(), 9),
        ("cos n=6", torch.cos, six, 1e-10, _full(6, cos), 58),
        ("cos n=2", torch.cos, six[:, :2], 1e-10, _full(2, cos), 58),
        ("cos n=1", torch.cos, six[:, :1], 1e-10, _row(cos), 58),
        ("cubic root", lambda z: z.sign() * z.abs() ** (1 / 3), six, 1e-10, _full(6, 1.0), 22),
        ("fifth root", lambda z: z.sign() * z.abs() ** 0.2, six[:, :3], 1e-10, _full(3, 1.0), None),
        ("linear 95 (18 - z)", lambda z: 95 * (18 - z), six, 1e-10, _full(6, 95 * 18 / 96), None),
        ("simple vector", _simple_vector, _row(0.3, 900), 1e-10, _row(1, 3), 105),
        ("leaves its domain", _leaves_domain, _row(0.3, 900), 1e-10, _row(1, 3), 105),
        ("constant increments", _constant_increments, _row(19, 10), 1e-10, _row(4, 2.3), None),
        ("diffusion", _diffusion, torch.cat([_full(50, 0.0), _full(50, 1.0)], 1), 1e-4, None, 221),
        ("perpetual put", _perpetual_put(), put_start, 1e-10, None, 103),
        ("exchange economy", _exchange_economy(), _full(10, 1.0), 1e-13, None, None),
    ]
    return [
        PeerProblem(
            name=name,
            source="FixedPoint",
            f=f,
            z0=z0,
            is_solved=within(limit),
            tol=max(limit / 10, 1e-13),
            exact=exact,
            num_picard=num_picard,
        )
        for name, f, z0, limit, exact, num_picard in table
    ]


# cvxgrp: gradient steps


def _cvxgrp() -> list[PeerProblem]:
    eigenvalues, q = torch.linspace(0.1, 1, 20, dtype=torch.float64), _randn(1, 20, seed=1)
    A, target = _randn(60, 30, seed=5), _randn(60, 1, seed=6)
    gram, right = A.T @ A, (A.T @ target).T
    step = 1 / torch.linalg.eigvalsh(gram).max()
    return [
        _point(
            "quadratic",
            "cvxgrp",
            lambda z: z - (z * eigenvalues.to(z) - q.to(z)),
            _randn(1, 20, seed=2),
            near(q / eigenvalues, 1e-6),
            1e-9,
            q / eigenvalues,
        ),
        _point(
            "least squares",
            "cvxgrp",
            lambda z: z - step.to(z) * (z @ gram.to(z) - right.to(z)),
            _full(30, 0.0),
            within(1e-8, order=2),
            1e-8,
            torch.linalg.solve(gram, right.T).T,
        ),
        _point(
            "nonnegative least squares",
            "cvxgrp",
            lambda z: torch.relu(z - step.to(z) * (z @ gram.to(z) - right.to(z))),
            _full(30, 1.0),
            within(1e-8, order=2),
            1e-8,
        ),
    ]


# Partial differential equations and integral equations of papers


def _grid_operators(size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return x and y of the interior points, and the matrices of -Δ, ∂x and ∂y, by central differences."""
    h = 1 / (size + 1)
    line, eye = h * _range(1, size), torch.eye(size, dtype=torch.float64)
    upper = torch.diag(torch.ones(size - 1, dtype=torch.float64), 1)
    second, first = (2 * eye - upper - upper.T) / h**2, (upper - upper.T) / (2 * h)
    laplacian = torch.kron(second, eye) + torch.kron(eye, second)
    y, x = (grid.flatten()[None] for grid in torch.meshgrid(line, line, indexing="ij"))
    return x, y, laplacian, torch.kron(eye, first), torch.kron(first, eye)


def _convection_diffusion(size: int, c: float) -> tuple[Map, Tensor]:
    """-Δu + c u (u_x + u_y) = b, preconditioned by the inverse of -Δ (Kelley 1995)."""
    x, y, laplacian, dx, dy = _grid_operators(size)
    exact = 10 * x * y * (1 - x) * (1 - y) * torch.exp(x**4.5)
    slope, inverse = (dx + dy).T, torch.linalg.inv(laplacian).T
    b = exact @ laplacian.T + c * exact * (exact @ slope)
    return lambda z: (b.to(z) - c * z * (z @ slope.to(z))) @ inverse.to(z), exact


def _papers() -> list[PeerProblem]:
    found = []

    def add(name: str, source: str, f: Map, z0: Tensor, factor: float, exact: Tensor | None = None) -> None:
        first = torch.linalg.vector_norm(f(z0) - z0).item()
        found.append(
            PeerProblem(
                name=name,
                source=source,
                f=f,
                z0=z0,
                is_solved=within(factor * first, order=2),
                tol=factor,
                exact=exact,
            )
        )

    for c in (0.5, 0.99, 1.0):
        add(f"H-equation c={c}", "Toth-Kelley", _chandrasekhar(100, c, 0.5), _full(100, 1.0), 1e-8)
    add(
        "nearly singular pair",
        "Toth-Kelley",
        lambda z: _columns(torch.cos(z.sum(1) / 2), torch.cos(z.sum(1) / 2) + 1e-8 * torch.sin(z[:, 0] ** 2)),
        _row(1, 1),
        1e-10,
    )
    x, _, laplacian, dx, dy = _grid_operators(15)
    inverse, jacobi = torch.linalg.inv(laplacian).T, 1 / laplacian.diagonal().max().item()
    for c in (1.0, 20.0):
        f, exact = _convection_diffusion(15, c)
        add(f"convection-diffusion c={c:g}", "Kelley", f, torch.zeros_like(exact), 1e-8, exact)
    linear = laplacian + 20 * dx + 20 * dy
    right = -torch.ones_like(x)
    add(
        "linear convection-diffusion, Jacobi",
        "Walker-Ni",
        lambda z: z + jacobi * (right.to(z) - z @ linear.to(z).T),
        torch.zeros_like(x),
        1e-6,
        torch.linalg.solve(linear, right.T).T,
    )
    add(
        "linear convection-diffusion, Poisson",
        "Walker-Ni",
        lambda z: (right.to(z) - 20 * (z @ (dx + dy).to(z).T)) @ inverse.to(z),
        torch.zeros_like(x),
        1e-8,
        torch.linalg.solve(linear, right.T).T,
    )
    add("Bratu, Poisson", "Fang-Saad", lambda z: 6 * z.exp() @ inverse.to(z), torch.zeros_like(x), 1e-8)
    add(
        "Bratu, Jacobi",
        "Fang-Saad",
        lambda z: z + jacobi * (6 * z.exp() - z @ laplacian.to(z).T),
        torch.zeros_like(x),
        1e-6,
    )
    return found


# EM of a mixture


def _poisson_mixture(z: Tensor) -> Tensor:
    """One step of expectation maximization for two Poisson distributions, on Hasselblad's counts of deaths per day."""
    counts = _row(162, 267, 271, 185, 111, 61, 27, 8, 3, 1).to(z)
    days = torch.arange(10, dtype=z.dtype)
    p, first, second = z.clamp(min=1e-7).unbind(1)
    p = p.clamp(max=1 - 1e-7)
    a = p[:, None] * torch.exp(-first[:, None] + days * first.log()[:, None])
    b = (1 - p)[:, None] * torch.exp(-second[:, None] + days * second.log()[:, None])
    share, rest = counts * a / (a + b), counts * b / (a + b)
    return _columns(
        share.sum(1) / counts.sum(), (days * share).sum(1) / share.sum(1), (days * rest).sum(1) / rest.sum(1)
    )


def _mixture_of_means() -> Map:
    """EM for the means of three normals of known weights and variances (Walker and Ni 2011, Section 5.1)."""
    weights, means = _row(0.3, 0.3, 0.4)[0], _row(0.0, 2.0, 4.0)[0]
    parts = torch.multinomial(weights, 2000, replacement=True, generator=torch.Generator().manual_seed(8))
    data = means[parts] + _randn(2000, seed=9)

    def f(z: Tensor) -> Tensor:
        density = weights.to(z) * torch.exp(-0.5 * (data.to(z)[None, :, None] - z[:, None, :]) ** 2)
        share = density / density.sum(2, keepdim=True)
        return (share * data.to(z)[None, :, None]).sum(1) / share.sum(1)

    return f


def _mixtures() -> list[PeerProblem]:
    return [
        _point("Poisson mixture", "Lepage-Saucier", _poisson_mixture, _row(0.25, 1, 2), within(1e-8, order=2), 1e-9),
        _point(
            "mixture of normals", "Walker-Ni", _mixture_of_means(), _row(0.1, 0.2, 0.3), within(1e-8, order=2), 1e-9
        ),
    ]


# Cases of this library


def _own() -> list[PeerProblem]:
    Q = torch.linalg.qr(_randn(8, 8, seed=0))[0]
    turn = _rotate(torch.full((3,), math.pi / 2, dtype=torch.float64), 1.2)
    center = _row(1, 2, 3, 4, 5, 6)
    table: list[tuple[str, Map, Tensor, Criterion, Tensor | None]] = [
        ("0.9 Q z", lambda z: 0.9 * z @ Q.to(z).T, _full(8, 1.0), within(1e-8), _full(8, 0)),
        ("tanh 0.9 Q z", lambda z: torch.tanh(0.9 * z @ Q.to(z).T), _full(8, 1.0), within(1e-8), _full(8, 0)),
        ("3 z + 1", lambda z: 3 * z + 1, _row(0), within(1e-8), _row(-0.5)),
        ("5 z, float32", lambda z: 5 * z, _full(4, 1.4).float(), within(1e-4), _full(4, 0)),
        ("stretched rotations", lambda z: z @ turn.to(z).T + center.to(z), _full(6, 0.0), within(1e-8), None),
        ("z + 1", lambda z: z + 1, _row(0), lambda z, fz, room=1.0: False, None),
    ]
    return [
        PeerProblem(
            name=name,
            source="steadeq",
            f=f,
            z0=z0,
            is_solved=is_solved,
            tol=1e-5 if z0.dtype == torch.float32 else 1e-8,
            exact=exact,
            has_solution=name != "z + 1",
        )
        for name, f, z0, is_solved, exact in table
    ]


PEER_PROBLEMS: list[PeerProblem] = [
    *_sciml(),
    *_scipy(),
    *_jaxopt(),
    *_optimistix(),
    *_fixed_point(),
    *_cvxgrp(),
    *_papers(),
    *_mixtures(),
    *_own(),
]
