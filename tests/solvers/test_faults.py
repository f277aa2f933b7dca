import dataclasses
import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from problems import affine, mixed, near_critical, tanh_network
from stubs import Scripted, replay

from steadeq import GMRES, Anderson, Broyden, Implicit, NewtonKrylov, Picard, Status, fixed_point
from steadeq.equilibrium import ConvergenceError

SOLVERS = [Picard, Anderson, Broyden, NewtonKrylov]
EVERY = [*SOLVERS, GMRES]


def solve(problem, solver, **options):
    return fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver, **options)


class TestNonFinite:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_a_single_bad_element_of_the_first_image_is_enough(self, solver, bad):
        z0 = torch.randn(2, 4)
        f = lambda z: torch.cat([0.5 * z[:, :-1] + 1, torch.full_like(z[:, -1:], bad)], dim=1)  # noqa: E731
        eq = fixed_point(f, z0, solver=solver())
        assert eq.stats.status.tolist() == [Status.NON_FINITE] * 2
        assert eq.stats.num_evals.tolist() == [1] * 2
        assert eq.stats.residual.isinf().all()
        assert torch.equal(eq.z, z0)

    def test_an_overflow_on_the_way_ends_with_the_best_finite_point(self):
        eq = fixed_point(lambda z: z**2 + 2, torch.ones(2, 1), solver=Picard(max_evals=50))
        assert eq.stats.status.tolist() == [Status.NON_FINITE] * 2
        assert eq.z.isfinite().all()
        assert eq.stats.residual.isfinite().all()
        assert eq.stats.num_evals.max() < 20
        assert torch.equal(eq.stats.residual, eq.stats.trace.amin(0))

    @pytest.mark.parametrize("others", [0.0, 1.0])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_a_start_that_is_not_finite_is_reported_whatever_map_and_neighbors_do(self, solver, bad, others):
        # The image of infinity is finite, and samples at zero are done at once.
        z0 = torch.full((3, 4), others, dtype=torch.float64)
        z0[1, 0] = bad
        eq = fixed_point(lambda z: torch.tanh(0.5 * z), z0, solver=solver(max_evals=200))
        assert eq.stats.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
        assert eq.stats.num_evals[1] == 1

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_an_image_that_vanishes_is_finite(self, solver, dtype):
        # A dead ReLU: f is exactly zero at a large point, and the relative residual is beyond any number.
        z0 = torch.tensor([[10.0], [1e6], [2.0]], dtype=dtype)
        eq = fixed_point(lambda z: torch.relu(5 - 0.5 * z), z0, solver=solver(max_evals=50, tol=1e-5))
        assert eq.stats.converged.all()
        torch.testing.assert_close(eq.z, torch.full_like(z0, 10 / 3), rtol=1e-4, atol=0)

    def test_half_precision_overflow_is_found(self):
        eq = fixed_point(lambda z: 100 * z + 1, torch.ones(2, 3, dtype=torch.float16), solver=Picard())
        assert eq.stats.status.tolist() == [Status.NON_FINITE] * 2
        assert eq.z.isfinite().all()


class TestStagnation:
    @pytest.mark.parametrize("make", [affine, near_critical, tanh_network], ids=lambda make: make.__name__)
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_a_tolerance_below_the_precision_ends_at_the_rounding_limit(self, solver, make):
        problem = make(torch.float32, 4)
        eq = solve(problem, solver(max_evals=3000, tol=1e-12))
        exact_hit = eq.stats.residual <= 1e-12
        assert (eq.stats.status == torch.where(exact_hit, int(Status.CONVERGED), int(Status.STAGNATED))).all()
        assert (eq.stats.num_evals < 3000).all()
        assert (eq.stats.residual < 1e-5).all()
        assert (problem.error(eq.z) < 20 * problem.condition * 1.2e-7).all()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_half_precision_states_stagnate_at_theirs(self, solver, dtype):
        problem = affine(dtype, 4)
        eq = solve(problem, solver(max_evals=500, tol=1e-7))
        assert (eq.stats.num_evals < 500).all()
        assert set(eq.stats.status.tolist()) <= {Status.STAGNATED, Status.CONVERGED}
        assert (eq.stats.residual < 4 * torch.finfo(dtype).eps).all()

    @pytest.mark.parametrize("solver", [Picard(max_evals=1200, tol=1e-6), Anderson(max_evals=1200, tol=1e-6, memory=2)])
    def test_slow_progress_is_not_stagnation(self, solver):
        eq = solve(near_critical(torch.float64, 2), solver)
        assert eq.stats.converged.all()
        assert (eq.stats.num_evals > 50).all()

    def test_a_residual_that_rises_before_it_falls_is_not_stagnation(self):
        # A Jordan block of size 12 with eigenvalue 0.6 lets errors grow for tens of evaluations.
        n = 12
        matrix = 0.6 * torch.eye(n, dtype=torch.float64) + torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
        b = torch.zeros(1, n, dtype=torch.float64)
        b[0, -1] = 1
        eq = fixed_point(lambda z: z @ matrix.T + b, torch.zeros_like(b), solver=Picard(max_evals=300, tol=1e-8))
        assert eq.stats.converged.all()

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_a_tolerance_of_zero_never_stagnates_and_keeps_the_best_point(self, solver):
        # At the rounding limit differences are noise, and Gram matrices singular.
        problem = affine(torch.float32, 5)
        eq = solve(problem, solver(max_evals=300, tol=0))
        assert (eq.stats.status != Status.STAGNATED).all()
        assert (eq.stats.residual < 1e-6).all()
        assert (problem.error(eq.z) < 1e-5).all()


class TestDivergence:
    @pytest.mark.parametrize("scale", [1.0, 1.4, 2.0, 3.0, 7.0])
    def test_an_image_whose_norm_overflows_is_not_a_solution(self, scale):
        # 5 z from here on: ‖f‖ overflows in float32 one step before ‖f - z‖ does, and a quotient by infinity is 0.
        for num in range(16):
            z0 = torch.full((1, 4), scale * 1.2**num)
            eq = fixed_point(lambda z: 5 * z, z0, solver=Picard(max_evals=100))
            assert eq.stats.status.tolist() == [Status.NON_FINITE]
            assert eq.stats.residual.tolist() == pytest.approx([0.8])

    @pytest.mark.parametrize("solver", [Picard(max_evals=20), Anderson(max_evals=3), Broyden(max_evals=2)], ids=repr)
    def test_the_state_of_an_exploding_solve_is_near_the_start(self, solver):
        # 3 z + 1 from 0: the relative residual falls from 1 to 2/3 while everything grows.
        f = lambda z: 3 * z + 1  # noqa: E731
        eq = fixed_point(f, torch.zeros(1, 2), solver=solver)
        assert torch.linalg.vector_norm(f(eq.z) - eq.z) < 10

    def test_what_meets_the_tolerance_is_returned_however_small_the_residual_was_before(self):
        # ‖f - z‖ grows a little at each of these points, and ‖f‖ much more.
        points = torch.tensor([[[1.0]], [[5.0]], [[25.0]]], dtype=torch.float64)
        f = lambda z: z + 1 + 1e-6 * z  # noqa: E731
        eq = fixed_point(f, points[0], solver=Scripted(points=points, max_evals=3, tol=0.05))
        assert eq.stats.converged.all()
        assert eq.z.item() == 25


class TestEquilibriumAtZero:
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]

    @pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
    @pytest.mark.parametrize("solver", [Picard, Anderson, Broyden, NewtonKrylov])
    def test_it_is_found_at_every_scale(self, solver, scale):
        for f in (lambda z: 0.9 * z @ self.rotation.T, lambda z: scale * torch.tanh(0.9 * z @ self.rotation.T / scale)):
            z0 = torch.full((3, 8), scale, dtype=torch.float64)
            eq = fixed_point(f, z0, solver=solver(max_evals=500, tol=1e-6))
            assert eq.stats.converged.all()
            assert (eq.z.abs() < 1e-18 * scale).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_it_is_found_in_every_dtype(self, dtype):
        eq = fixed_point(lambda z: 0.5 * z, torch.ones(2, 3, dtype=dtype), solver=Picard(max_evals=60))
        assert eq.stats.converged.all()
        assert (eq.z.abs() < 1e-7).all()

    @pytest.mark.parametrize("max_evals", [2, 5, 10, 20])
    def test_the_nearest_point_is_returned_when_the_budget_ends(self, max_evals):
        eq = fixed_point(lambda z: 0.5 * z, torch.ones(1, 3), solver=Picard(max_evals=max_evals))
        assert eq.stats.status.tolist() == [Status.MAX_EVALS]
        torch.testing.assert_close(eq.z, torch.full((1, 3), 0.5 ** (max_evals - 1)))

    def test_a_small_equilibrium_is_not_taken_for_zero(self):
        z = torch.full((1, 3), 1e-5)
        eq = fixed_point(lambda z: 0.5 * z + 5e-6, torch.ones(1, 3), solver=Picard(max_evals=60))
        assert eq.stats.converged.all()
        torch.testing.assert_close(eq.z, z, rtol=2e-3, atol=0)


class TestLongWork:
    def test_a_secant_method_may_take_twice_the_dimension_before_it_makes_progress(self):
        # Broyden ends affine problems within 2 n steps (Gay, 1979), whatever the residuals do on the way.
        n, generator = 40, torch.Generator().manual_seed(3)
        matrix = torch.randn(n, n, dtype=torch.float64, generator=generator)
        b = torch.randn(1, n, dtype=torch.float64, generator=generator)
        solver = Broyden(max_evals=2 * n + 10, memory=2 * n + 10, tol=1e-8)
        eq = fixed_point(lambda z: z @ matrix.T + b, torch.zeros_like(b), solver=solver)
        assert eq.stats.trace.max() > 1.0 or eq.stats.num_evals.item() > 40
        assert eq.stats.converged.all()


class TestLimit:
    def test_every_kind_of_failure_is_counted(self):
        f = lambda z, kind: torch.where(  # noqa: E731
            kind == 0,
            0.5 * z + 1,
            torch.where(kind == 1, 10 - z, torch.where(kind == 2, z * float("nan"), 0.999 * z + 1)),
        )
        kind = torch.tensor([[0], [1], [2], [3], [3]])
        eq = fixed_point(f, torch.ones(5, 1, dtype=torch.float64), kind, solver=Picard(max_evals=60, tol=1e-4))
        expected = [Status.CONVERGED, Status.STAGNATED, Status.NON_FINITE, Status.MAX_EVALS, Status.MAX_EVALS]
        assert eq.stats.status.tolist() == expected
        with pytest.raises(ConvergenceError) as error:
            eq.raise_if_failed()
        parts = ("2 of 5 samples MAX_EVALS", "1 of 5 samples NON_FINITE", "1 of 5 samples STAGNATED")
        for part in (*parts, Status.MAX_EVALS.message, "Largest relative residual"):
            assert part in str(error.value)
        assert "CONVERGED" not in str(error.value)
        # Samples that go around between two points end where one half step, or Anderson's first secant, finds them.
        orbit = lambda z: 10 - z  # noqa: E731
        for solver in (Picard(tol=1e-3, damping=0.5), Anderson(tol=1e-3)):
            assert fixed_point(orbit, torch.ones(1, 1), solver=solver).stats.converged.all()


class TestReports:
    def test_every_status_says_in_a_sentence_what_happened_and_what_to_do(self):
        assert all(status.message.endswith(".") and status.message[0].isupper() for status in Status)
        assert len({status.message for status in Status}) == len(Status) == 6
        assert re.search("tol.*max_evals|max_evals.*tol", Status.MAX_EVALS.message)
        assert "damping" in Status.NON_FINITE.message
        assert "dtype" in Status.STAGNATED.message
        # What was not measured gives no advice.
        assert not re.search("raise|loosen|max_evals|tol", Status.NOT_MEASURED.message)

    def test_text_gives_counts_and_no_tensors(self):
        eq = solve(mixed(torch.float64, 9), Picard(max_evals=20, tol=1e-3))
        count = int(eq.stats.converged.sum())
        assert 0 < count < 9
        assert f"{count} of 9 samples converged in 20 evaluations" in str(eq.stats)
        assert f"{count} CONVERGED, {9 - count} MAX_EVALS" in repr(eq.stats)
        assert "tensor" not in repr(eq.stats)
        assert repr(eq) == f"Equilibrium({eq.stats})"


def plateau(z, center):
    """A map whose residual is flat far from its fixed point, so that secants through it end in a region without one.

    Plain iteration walks to the center; a step that leaves the valley is driven away for good.
    """
    valley = z - 0.5 * torch.tanh(z - center)
    return torch.where((z - center).abs() < 10, valley, 3 * z.abs() + 500)


class TestSafeguard:
    center = torch.tensor([[100.0], [100.0], [100.0]], dtype=torch.float64)
    start = torch.tensor([[104.0], [100.5], [106.0]], dtype=torch.float64)
    solver = Anderson(max_evals=100, tol=1e-8)

    def test_without_it_the_sample_is_lost(self, monkeypatch):
        monkeypatch.setattr(Anderson, "max_growth", float("inf"))
        eq = fixed_point(plateau, self.start, self.center, solver=self.solver)
        assert eq.stats.converged.tolist() == [False, True, False]

    @pytest.mark.parametrize("compact", [False, True])
    def test_it_brings_a_sample_back(self, compact):
        eq = fixed_point(plateau, self.start, self.center, solver=self.solver, compact=compact)
        assert eq.stats.converged.all()
        torch.testing.assert_close(eq.z, self.center, rtol=1e-7, atol=0)
        # It was thrown out, and came back.
        assert eq.stats.trace[:, 0].max() > 10 * eq.stats.trace[0, 0]

    def test_a_rescued_sample_does_not_touch_its_neighbors(self):
        together = fixed_point(plateau, self.start, self.center, solver=self.solver, compact=False)
        for sample in range(3):
            row = slice(sample, sample + 1)
            alone = fixed_point(plateau, self.start[row], self.center[row], solver=self.solver)
            assert torch.equal(alone.z, together.z[row])
            assert torch.equal(alone.stats.num_evals, together.stats.num_evals[row])

    @pytest.mark.parametrize("solver", [Anderson, Broyden])
    def test_the_step_after_a_rejection_is_the_plain_one(self, solver):
        z, fz = torch.randn(2, 5, 3, 4, dtype=torch.float64)
        with torch.no_grad():
            *_, following = replay(solver(max_evals=30), z, fz, [None] * 4 + [torch.tensor([False, True, False])])[1]
        # Back at the evaluation before the rejected one, without history.
        torch.testing.assert_close(following[1], fz[3, 1])
        assert not torch.allclose(following[0], fz[3, 0])


class TestDegenerateHistories:
    @pytest.mark.parametrize("ridge", [0.0, 1e-6])
    def test_differences_that_vanish_do_not_break_the_batch(self, ridge):
        # Sample 0 is constant: its residual is zero after one step, and tol = 0 keeps everyone going.
        problem = mixed(torch.float64, 4)
        gain = torch.tensor([[0.0], [1.0], [1.0], [1.0]], dtype=torch.float64)
        f = lambda z, gain, radius, b: gain * problem.f(z, radius, b) + 1  # noqa: E731
        eq = fixed_point(f, problem.z0, gain, *problem.inputs, solver=Anderson(max_evals=25, tol=0, ridge=ridge))
        assert eq.z.isfinite().all()
        assert torch.equal(eq.z[0], torch.ones(6, dtype=torch.float64))
        assert (eq.stats.residual < 1e-6).all()

    @pytest.mark.parametrize("solver", [Anderson, Broyden, NewtonKrylov])
    def test_more_memory_than_dimensions_is_harmless(self, solver):
        slope = torch.tensor([[0.5], [-2.0], [0.9]], dtype=torch.float64)
        eq = fixed_point(
            lambda z, slope: slope * z + 1, torch.zeros_like(slope), slope, solver=solver(tol=1e-10, memory=30)
        )
        assert eq.stats.converged.all()
        torch.testing.assert_close(eq.z, 1 / (1 - slope))

    @pytest.mark.parametrize("solver", [Picard, Anderson, Broyden, NewtonKrylov])
    def test_a_constant_map_takes_two_evaluations(self, solver):
        x = torch.randn(3, 4)
        # A map may return what it was given.
        for f in (lambda z, x: x.clone(), lambda z, x: x):
            eq = fixed_point(f, torch.zeros(3, 4), x, solver=solver(tol=0))
            assert eq.stats.num_evals.tolist() == [2] * 3
            assert torch.equal(eq.z, x)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("solver", [Anderson, Broyden])
    def test_differences_that_are_rounding_do_not_lead_away(self, solver, dtype):
        # All steps towards the distant target are of one length, so that their differences are rounding errors.
        generator = torch.Generator().manual_seed(0)
        step = 0.1 + torch.rand(5, 16, generator=generator).to(dtype)
        start = torch.randn(5, 16, generator=generator).to(dtype)
        target = start + 12.5 * step
        f = lambda z, target, step: z + step * ((target - z) / step).clamp(-1, 1)  # noqa: E731
        eq = fixed_point(f, start, target, step, solver=solver(max_evals=20))
        assert eq.stats.converged.all()
        torch.testing.assert_close(eq.z, target)


class TestHyperParameters:
    @pytest.mark.parametrize(
        ("value", "kind"), [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError)]
    )
    @pytest.mark.parametrize(
        ("solver", "name"),
        [
            *itertools.product(EVERY, ("max_evals", "check_every")),
            *itertools.product(SOLVERS, ["patience"]),
            *((solver, "memory") for solver in EVERY if solver is not Picard),
        ],
    )
    def test_counts(self, solver, name, value, kind):
        with pytest.raises(kind, match=rf"^{name} is {value!r}; .*integer >= 1.*\.$"):
            solver(**{name: value})

    @pytest.mark.parametrize(
        ("name", "values", "bounds", "solvers"),
        [
            ("tol", [-1e-3, float("nan"), float("inf")], "finite number >= 0", EVERY),
            ("ridge", [-1e-8, float("nan"), float("inf")], ">= 0", [Anderson]),
            ("damping", [0, 1.5, -0.5, float("nan")], r"\(0, 1\]", [Picard]),
            ("mixing", [0, 1.5, -0.5, float("nan")], r"\(0, 1\]", [Anderson]),
        ],
    )
    def test_numbers(self, name, values, bounds, solvers):
        for solver, value in itertools.product(solvers, values):
            with pytest.raises(ValueError, match=rf"^{name} is {re.escape(repr(value))}; .*{bounds}.*\.$"):
                solver(**{name: value})
            with pytest.raises(ValueError, match=f"{name} is"):
                dataclasses.replace(solver(), **{name: value})

    @pytest.mark.parametrize("solver", EVERY)
    def test_what_is_allowed_at_the_edge(self, solver):
        solver(max_evals=1, tol=0)
        Anderson(memory=1, mixing=1, ridge=0)
        Picard(damping=1)

    @pytest.mark.parametrize("solver", EVERY)
    def test_solvers_are_frozen_comparable_hashable_and_made_by_keyword(self, solver):
        with pytest.raises(TypeError, match="max_iter"):
            solver(max_iter=10)
        with pytest.raises(TypeError):
            solver(10)
        with pytest.raises(dataclasses.FrozenInstanceError):
            solver().max_evals = 3
        assert solver(max_evals=7) == solver(max_evals=7) != solver(max_evals=8)
        assert hash(solver(max_evals=7)) == hash(solver(max_evals=7))
        assert dataclasses.replace(solver(), max_evals=9).max_evals == 9


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tolerance_beyond_the_largest_number_accepts_the_start(solver, dtype):
    z0 = torch.ones(2, 3, dtype=dtype, requires_grad=True)
    eq = fixed_point(lambda z, x: 0.5 * z + x, z0, z0, solver=solver(tol=1e39), adjoint=Implicit(GMRES(tol=1e39)))
    assert eq.stats.converged.all()
    assert eq.stats.num_evals.tolist() == [1, 1]
    eq.z.sum().backward()
    assert z0.grad.isfinite().all()


class TestReusedMemory:
    """A map that writes its results into a buffer that it keeps changes what the solver still works with."""

    W = 0.4 * torch.eye(6).roll(1, 0)

    def image(self, z, x):
        return torch.tanh(z @ self.W + x)

    def keeping(self, how):
        """Return a map that keeps its buffers; `how` is how it writes to them."""
        buffer = torch.empty(9, 6)
        array = np.empty((9, 6), dtype=np.float32)

        def out(z, x):
            return torch.tanh(z @ self.W + x, out=buffer[: len(z)])

        def copy(z, x):
            return buffer[: len(z)].copy_(self.image(z, x))

        def untracked(z, x):
            # As a captured CUDA graph does, whose writing torch does not count either.
            array[: len(z)] = self.image(z, x).numpy()
            return torch.from_numpy(array)[: len(z)]

        return {"out": out, "copy": copy, "untracked": untracked}[how]

    @pytest.mark.parametrize("shape", [(9, 6), (9, 2, 3)])
    @pytest.mark.parametrize("solver", [*SOLVERS, partial(Picard, damping=0.5)])
    @pytest.mark.parametrize("how", ["out", "copy", "untracked"])
    def test_is_refused(self, how, solver, shape):
        f = self.keeping(how)

        def shaped(z, x):
            return f(z.flatten(1), x).view_as(z)

        with torch.no_grad(), pytest.raises(ValueError, match=r"wrote its result over an earlier one.*clone"):
            fixed_point(shaped, torch.zeros(shape), torch.randn(9, 6), solver=solver(max_evals=40))

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_is_harmless_where_the_solver_copies(self, solver):
        f, x = self.keeping("copy"), torch.randn(9, 6)
        with torch.no_grad():
            eq = fixed_point(
                lambda z, x: (f(z[0], x), z[1] / 2), (torch.zeros(9, 6), torch.ones(9, 2)), x, solver=solver(tol=1e-6)
            )
        assert eq.stats.converged.all()
        torch.testing.assert_close(eq.z[0], self.image(eq.z[0], x), rtol=0, atol=1e-5)
        # A clone is all that it takes elsewhere.
        with torch.no_grad():
            z = fixed_point(lambda z, x: f(z, x).clone(), torch.zeros(9, 6), x, solver=solver(tol=1e-6)).z
        torch.testing.assert_close(z, self.image(z, x), rtol=0, atol=1e-5)
