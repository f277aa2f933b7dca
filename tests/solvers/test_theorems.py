"""What is known about the methods on paper, asked of the code."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from problems import affine, complex_pair, mixed, near_critical, tanh_network
from stubs import Counted, replay

from steadeq import GMRES, Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point
from steadeq.solvers.broyden import apply_transposed


def matrix_with_radius(size, radius, seed=0):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(size, size, dtype=torch.float64, generator=generator)
    return matrix * (radius / torch.linalg.eigvals(matrix).abs().max())


def points_of(f, z0, solver):
    """Return every point that the solver evaluates, for a single sample."""
    watched = Counted(f)
    with torch.no_grad():
        fixed_point(watched, z0, solver=solver)
    return np.concatenate([point.numpy() for point in watched.points])


class TestPicard:
    @pytest.mark.parametrize(
        "make", [affine, near_critical, complex_pair, tanh_network], ids=lambda make: make.__name__
    )
    def test_the_residual_falls_by_the_spectral_radius_per_evaluation(self, make):
        problem = make(torch.float64, 1)
        trace = fixed_point(
            problem.f, problem.z0, *problem.inputs, solver=Picard(max_evals=600, tol=1e-12)
        ).stats.trace[:, 0]
        # A complex pair makes the ratio swing, so that it is averaged over the second half.
        half = len(trace) // 2
        rate = (trace[-1] / trace[half]) ** (1 / (len(trace) - 1 - half))
        assert float(rate) == pytest.approx(problem.radius, rel=0.02)

    @pytest.mark.parametrize("damping", [0.3, 0.7])
    def test_damping_moves_the_spectrum_towards_one(self, damping):
        problem = near_critical(torch.float64, 1)
        eigenvalues = torch.linspace(-0.5, 0.99, 6, dtype=torch.float64)
        solver = Picard(max_evals=2000, tol=1e-6, damping=damping)
        trace = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver).stats.trace[:, 0]
        expected = (1 - damping + damping * eigenvalues).abs().max()
        assert float(trace[-1] / trace[-2]) == pytest.approx(float(expected), rel=1e-4)


def gmres_iterates(matrix, b, x0):
    """Return GMRES iterates of matrix @ x = b from the definition: the least residual over each Krylov space."""
    r0 = b - matrix @ x0
    krylov, iterates = [r0 / np.linalg.norm(r0)], [x0]
    for k in range(1, len(b) + 1):
        basis = np.stack(krylov, axis=1)
        weights = np.linalg.lstsq(matrix @ basis, r0, rcond=None)[0]
        iterates.append(x0 + basis @ weights)
        rest = matrix @ krylov[-1]
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        if k < len(b):
            krylov.append(rest / np.linalg.norm(rest))
    return iterates


class TestAnderson:
    @pytest.mark.parametrize("mixing", [1.0, 0.6])
    @pytest.mark.parametrize("radius", [0.5, 0.95, 1.5])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_with_full_memory_it_is_gmres_on_affine_maps(self, radius, mixing, seed):
        # Walker and Ni (2011), Theorem 2.2: point k + 1 is the (mixed) image of the GMRES iterate k.
        n = 8
        matrix = matrix_with_radius(n, radius, seed)
        b, z0 = torch.randn(2, 1, n, dtype=torch.float64)
        f = lambda z: z @ matrix.T + b  # noqa: E731
        points = points_of(f, z0, Anderson(max_evals=n + 1, tol=0, memory=n + 2, mixing=mixing, ridge=0))
        iterates = gmres_iterates(np.eye(n) - matrix.numpy(), b[0].numpy(), z0[0].numpy())
        for k in range(n - 1):
            image = f(torch.from_numpy(iterates[k])[None])[0].numpy()
            expected = (1 - mixing) * iterates[k] + mixing * image
            np.testing.assert_allclose(points[k + 1], expected, rtol=1e-5, atol=1e-5 * np.linalg.norm(expected))

    def test_the_window_is_the_multisecant_step_of_its_newest_evaluations(self):
        problem = tanh_network(torch.float64, 1)
        f = lambda z: problem.f(z, *problem.inputs)  # noqa: E731
        memory = 4
        points = points_of(f, problem.z0, Anderson(max_evals=10, tol=0, memory=memory, ridge=0))
        images = f(torch.from_numpy(points)).numpy()
        residuals = images - points
        for k in range(1, 9):
            first = max(0, k - memory + 1)
            dg, df = np.diff(residuals[first : k + 1], axis=0), np.diff(images[first : k + 1], axis=0)
            weights = np.linalg.lstsq(dg.T, residuals[k], rcond=None)[0]
            scale = np.linalg.norm(points[k + 1] - points[k])
            np.testing.assert_allclose(points[k + 1], images[k] - df.T @ weights, rtol=0, atol=1e-5 * scale)

    def test_memory_one_is_plain_iteration(self):
        problem = mixed(torch.float64, 5)
        for solvers in (
            (Anderson(max_evals=9, tol=0, memory=1), Picard(max_evals=9, tol=0)),
            (Anderson(max_evals=9, tol=0, memory=1, mixing=0.5), Picard(max_evals=9, tol=0, damping=0.5)),
        ):
            accelerated, plain = (fixed_point(problem.f, problem.z0, *problem.inputs, solver=s) for s in solvers)
            torch.testing.assert_close(accelerated.stats.trace, plain.stats.trace, rtol=1e-9, atol=0)

    @pytest.mark.parametrize("ridge", [0.0, 1e-6, 1e-2])
    def test_the_ridge_does_not_bias_the_solution(self, ridge):
        problem = affine(torch.float64, 3)
        eq = fixed_point(problem.f, problem.z0, *problem.inputs, solver=Anderson(max_evals=100, tol=1e-10, ridge=ridge))
        assert eq.stats.converged.all()
        assert (problem.error(eq.z) < 1e-9).all()


def dense_broyden(points, residuals):
    """Return the inverse estimate after Broyden's good updates, one after the other, in dense arithmetic."""
    H = -np.eye(points.shape[1])
    for s, y in zip(np.diff(points, axis=0), np.diff(residuals, axis=0), strict=True):
        H = H + np.outer(s - H @ y, s @ H) / (s @ H @ y)
    return H


def compact_inverse(points, images, memory):
    """Return the inverse estimate after these evaluations, read off one unit vector at a time."""
    n = points.shape[1]
    z, fz = (torch.from_numpy(array)[:, None].expand(-1, n, n) for array in (points, images))
    with torch.no_grad():
        state, answers = replay(Broyden(max_evals=len(points) + 2, memory=memory), z, fz, [None] * len(z))
        return -apply_transposed(state, torch.eye(n, dtype=torch.float64)).numpy(), answers[-1][0].numpy()


class TestBroyden:
    @pytest.mark.parametrize("radius", [0.3, 0.9, 1.5, 3.0])
    @pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
    def test_an_affine_map_of_n_dimensions_is_solved_within_2n_steps(self, n, radius):
        # Gay (1979): the residual vanishes after at most 2 n steps, so that evaluation 2 n + 1 finds it.
        matrices = torch.stack([matrix_with_radius(n, radius, seed) for seed in range(10)])
        b = torch.randn(10, n, dtype=torch.float64)
        f = lambda z, matrices, b: torch.einsum("bij,bj->bi", matrices, z) + b  # noqa: E731
        solver = Broyden(max_evals=2 * n + 1, tol=1e-6, memory=2 * n)
        eq = fixed_point(f, torch.zeros_like(b), matrices, b, solver=solver)
        assert eq.stats.converged.all()

    @pytest.mark.parametrize("memory", [1, 2, 3, 5, 20])
    @pytest.mark.parametrize("make", [affine, tanh_network], ids=lambda make: make.__name__)
    def test_the_compact_form_is_the_sequential_recursion_over_its_window(self, make, memory):
        problem = make(torch.float64, 1)
        f = lambda z: problem.f(z, *problem.inputs)  # noqa: E731
        points = points_of(f, problem.z0, Broyden(max_evals=9, tol=0, memory=memory))
        images = f(torch.from_numpy(points)).numpy()
        residuals = images - points
        for k in range(1, 8):
            first = max(0, k - memory)
            H = dense_broyden(points[first : k + 1], residuals[first : k + 1])
            expected = points[k] - H @ residuals[k]
            np.testing.assert_allclose(points[k + 1], expected, rtol=0, atol=1e-8 * np.linalg.norm(expected))
            estimate, following = compact_inverse(points[: k + 1], images[: k + 1], memory)
            np.testing.assert_allclose(estimate, H, rtol=0, atol=1e-8 * np.linalg.norm(H))
            np.testing.assert_allclose(following, expected, rtol=0, atol=1e-8 * np.linalg.norm(expected))


class TestNewtonKrylov:
    @pytest.mark.parametrize("radius", [1.5, 5.0, 50.0])
    def test_an_expanding_affine_map_takes_few_outer_steps(self, radius):
        n = 6
        matrix = matrix_with_radius(n, radius)
        b = torch.randn(4, n, dtype=torch.float64)
        solver = NewtonKrylov(max_evals=4 * (n + 1) + 2, tol=1e-8)
        eq = fixed_point(lambda z, b: z @ matrix.T + b, torch.zeros_like(b), b, solver=solver)
        assert eq.stats.converged.all()
        exact = torch.linalg.solve(torch.eye(n, dtype=torch.float64) - matrix, b.T).T
        torch.testing.assert_close(eq.z, exact, rtol=1e-5, atol=1e-6)

    def test_scalar_steps_are_newton_steps(self):
        # g = 3 cos z - z: the residual after an exact step is quadratic in the one before.
        f = lambda z: 3 * torch.cos(z)  # noqa: E731
        trace = fixed_point(
            f, torch.ones(1, 1, dtype=torch.float64), solver=NewtonKrylov(max_evals=30, tol=1e-13)
        ).stats.trace[:, 0]
        steps = trace[1::2]  # start, image, then probe and candidate in turn
        assert len(trace) <= 10
        for before, after in pairwise(steps):
            assert after <= 2 * before**2 + 1e-7 * before + 1e-15

    def test_a_step_that_overshoots_is_halved(self):
        # Newton's method on the arc tangent diverges from beyond 1.39 of its root, which lies at 5 here.
        f = lambda z: z - torch.atan(z - 5)  # noqa: E731
        z0 = torch.tensor([[5.1], [8.0], [15.0], [-4.0]], dtype=torch.float64)
        eq = fixed_point(f, z0, solver=NewtonKrylov(max_evals=60, tol=1e-10))
        assert eq.stats.converged.all()
        torch.testing.assert_close(eq.z, torch.full_like(z0, 5.0))


class TestLinearGMRES:
    @staticmethod
    def system(n=8, batch_size=3, radius=0.9, seed=0, dtype=torch.float64):
        matrix = matrix_with_radius(n, radius, seed).to(dtype)
        b = torch.randn(batch_size, n, dtype=torch.float64).to(dtype)
        return (lambda u: u @ matrix.T), matrix, b

    @staticmethod
    def residual(operator, u, b):
        return (b + operator(u) - u).norm(dim=1) / b.norm(dim=1)

    @pytest.mark.parametrize("radius", [0.5, 0.99, 1.5, 10.0])
    def test_the_trace_is_the_least_residual_over_each_krylov_space(self, radius):
        operator, matrix, b = self.system(radius=radius)
        _, stats = GMRES(max_evals=7, tol=0).solve_linear(operator, b)
        system = np.eye(8) - matrix.numpy()
        for row in range(3):
            right = b[row].numpy()
            iterates = gmres_iterates(system, right, np.zeros(8))
            expected = [np.linalg.norm(right - system @ x) / np.linalg.norm(right) for x in iterates[1:8]]
            np.testing.assert_allclose(stats.trace[:, row].numpy(), expected, rtol=1e-8)

    def test_a_happy_breakdown_is_an_exact_solution(self):
        # Sample k lies in an invariant space of dimension k + 1, and is solved exactly there, with tol = 0.
        matrix = torch.diag(torch.tensor([0.5, -0.5, 2.0, 0.25], dtype=torch.float64))
        b = torch.tril(torch.ones(4, 4, dtype=torch.float64))
        u, stats = GMRES(max_evals=12, tol=0).solve_linear(lambda u: u @ matrix, b)
        torch.testing.assert_close(u, b / (1 - matrix.diagonal()), rtol=1e-9, atol=1e-12)
        assert stats.num_evals[0] == 1
        assert (stats.residual < 1e-12).all()
        assert u.isfinite().all()

    def test_a_singular_system_is_reported_and_its_neighbor_solved(self):
        # I - diag(1, 0.5) has no inverse: the first coordinate of the first sample cannot be matched.
        eigenvalues = torch.tensor([[1.0, 0.5], [0.2, 0.5]], dtype=torch.float64)
        b = torch.ones(2, 2, dtype=torch.float64)
        u, stats = GMRES(max_evals=40, tol=1e-8).solve_linear(lambda u: u * eigenvalues, b)
        assert stats.status[0] in (Status.MAX_EVALS, Status.STAGNATED)
        assert stats.residual[0] == pytest.approx(0.5**0.5)
        assert u.isfinite().all()
        assert stats.converged[1]
        torch.testing.assert_close(u[1], 1 / (1 - eigenvalues[1]))
        torch.testing.assert_close(self.residual(lambda u: u * eigenvalues, u, b), stats.residual, atol=1e-8, rtol=0)

    @pytest.mark.parametrize("gap", [0, 1e-14, 1e-12, 1e-7, 1e-4])
    def test_what_is_close_to_singular_is_solved_within_its_precision_or_said_not_to_be(self, gap):
        tol = 1e-5 if gap > 1e-10 else 1e-6
        for seed in range(40):
            generator = torch.Generator().manual_seed(seed)
            # Not normal, with an eigenvalue 1 - gap.
            basis = torch.randn(6, 6, dtype=torch.float64, generator=generator)
            eigenvalues = torch.rand(6, dtype=torch.float64, generator=generator)
            eigenvalues[0] = 1 - gap
            matrix = basis * eigenvalues @ torch.linalg.inv(basis)
            b = torch.randn(4, 6, dtype=torch.float64, generator=generator)
            operator = lambda u, matrix=matrix: u @ matrix.T  # noqa: E731
            u, stats = GMRES(max_evals=40, tol=tol).solve_linear(operator, b)
            true = self.residual(operator, u, b)
            assert (true[stats.converged] < (1e-4 if gap > 1e-10 else 0.1)).all()
            assert (true <= 1 + 1e-6).all()
            assert gap < 1e-10 or stats.converged.all()
