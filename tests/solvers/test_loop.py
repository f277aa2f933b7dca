"""The driver loop alone, on scripted points of a map whose relative residual is the point itself."""

import itertools

import pytest
import torch
from stubs import Counted, Scripted

from steadeq import Broyden, Implicit, Picard, Reversible, Status, fixed_point
from steadeq._internal.trees import Layout
from steadeq.solvers._solve import Options, solve

NAN, INF = float("nan"), float("inf")


def f(z):
    """Return an image for which ‖f(z) - z‖ / ‖f(z)‖ = z for 0 <= z < 1, and NaN elsewhere."""
    return torch.where(z < 1, z / (1 - z), NAN)


def run(residuals, **options):
    """Solve with each column of residuals as the script of a sample."""
    points = torch.tensor(residuals, dtype=torch.float64)[:, :, None]
    compact = options.pop("compact", False)
    solver = Scripted(points=points, max_evals=options.pop("max_evals", len(points)), **options)
    with torch.no_grad():
        return fixed_point(f, points[0], solver=solver, compact=compact), solver.log


def column(*residuals):
    return [[residual] for residual in residuals]


def test_the_best_point_is_kept_per_sample():
    eq, _ = run([[0.9, 0.1, 0.5], [0.2, 0.4, 0.4], [0.5, 0.3, 0.3], [0.3, 0.2, 0.6]], tol=1e-3)
    assert eq.z[:, 0].tolist() == [0.2, 0.1, 0.3]
    assert eq.stats.num_evals.tolist() == [4, 4, 4]
    assert eq.stats.status.tolist() == [Status.MAX_EVALS] * 3


@pytest.mark.parametrize("compact", [False, True])
def test_each_sample_stops_at_the_first_point_within_its_tolerance(compact):
    script = [[0.9, 0.9, 0.9, 0.05], [0.5, 0.05, 0.8, 0.01], [0.1, 0.9, 0.05, 0.9], [0.04, 0.0, 0.0, 0.0]]
    eq, _ = run(script, tol=0.1, compact=compact)
    assert eq.z[:, 0].tolist() == [0.1, 0.05, 0.05, 0.05]
    assert eq.stats.num_evals.tolist() == [3, 2, 3, 1]
    assert eq.stats.converged.all()
    assert eq.stats.trace.shape == (3, 4)
    torch.testing.assert_close(eq.stats.trace[-1], torch.tensor([0.1, 0.05, 0.05, 0.05], dtype=torch.float64))


@pytest.mark.parametrize("compact", [False, True])
def test_rows_leave_the_rule_once_a_quarter_is_done(compact):
    script = [[0.9] * 8, [0.01] + [0.8] * 7, [0.9, 0.01] + [0.7] * 6, [0.9, 0.9] + [0.6] * 6, [0.5] * 8]
    _, log = run(script, tol=0.1, compact=compact)
    assert [rows for rows, _ in log] == [list(range(8)), list(range(8)), list(range(2, 8)), list(range(2, 8))]


def test_a_failed_row_stays_with_the_others_until_they_leave():
    script = [[0.9] * 4, [NAN, 0.8, 0.8, 0.8], [0.1, 0.7, 0.7, 0.7], [0.1, 0.01, 0.6, 0.6], [0.5] * 4]
    eq, log = run(script, tol=0.1)
    assert [rows for rows, _ in log] == [[0, 1, 2, 3]] * 3 + [[2, 3]]
    assert eq.stats.status.tolist() == [Status.NON_FINITE, Status.CONVERGED, Status.MAX_EVALS, Status.MAX_EVALS]
    assert eq.z[:, 0].tolist() == [0.9, 0.01, 0.5, 0.5]
    assert eq.stats.num_evals.tolist() == [2, 4, 5, 5]
    assert eq.stats.trace[:, 0].tolist() == [0.9, INF, INF, INF, INF]


@pytest.mark.parametrize(
    ("script", "max_growth", "marked"),
    [
        # Against the best before the evaluation, not the last.
        (
            [[0.5, 0.01, 0.5], [0.1, 0.11, 0.4], [0.9, 0.02, 0.3], [0.99, 0.09, 0.2], [0.5] * 3],
            5.0,
            [[], [1], [0], [0, 1]],
        ),
        # Whoever has finished is not rejected.
        ([[0.9] * 5, [5e-4] + [0.5] * 4, [0.99] + [0.4] * 4, [0.5] * 5], 2.0, [[], [], []]),
        # Without a limit nobody is.
        (column(0.01, 0.9, 0.99, 0.5), INF, [[], [], []]),
    ],
)
def test_growth_beyond_the_limit_of_the_rule_is_rejected(script, max_growth, marked):
    _, log = run(script, tol=1e-3, max_growth=max_growth)
    assert [rows for _, rows in log] == marked


@pytest.mark.parametrize(
    ("samples", "options", "statuses", "num_evals"),
    [
        # Three windows without progress, or one at the rounding limit.
        ([[0.5] * 100], {}, [Status.STAGNATED], [40]),
        ([[0.5] * 100], {"quiet_windows": 2}, [Status.STAGNATED], [70]),
        ([[0.5, *[1e-15] * 99]], {"tol": 1e-17}, [Status.STAGNATED], [20]),
        # A little in each window is progress, and in one of three windows it starts the count anew.
        ([[0.5 * 0.99 ** (k // 10) for k in range(100)]], {}, [Status.MAX_EVALS], [100]),
        ([[0.5 * 0.9 ** (k // 30) for k in range(200)]], {}, [Status.MAX_EVALS], [200]),
        # Each sample is judged by itself.
        ([[0.5 * 0.9**k for k in range(60)], [0.5] * 60], {}, [Status.MAX_EVALS, Status.STAGNATED], [60, 40]),
        (
            [[0.5 * 0.9 ** ((k + shift) // 30) for k in range(200)] for shift in (0, 15)],
            {},
            [Status.MAX_EVALS] * 2,
            [200, 200],
        ),
        # 0.5 / (1 - 0.5) and its quotient are exact: the tolerance itself is good enough.
        ([[0.9, 0.5]], {"tol": 0.5}, [Status.CONVERGED], [2]),
    ],
)
def test_a_sample_stagnates_when_it_makes_no_progress(samples, options, statuses, num_evals):
    eq, _ = run(list(zip(*samples, strict=True)), **{"tol": 1e-3 if len(samples) == 1 else 1e-6, **options})
    assert eq.stats.status.tolist() == statuses
    assert eq.stats.num_evals.tolist() == num_evals
    points = torch.tensor(samples, dtype=torch.float64)[0, : num_evals[0]]
    torch.testing.assert_close(eq.stats.trace[: num_evals[0], 0], points)


def test_a_point_whose_norm_overflows_is_never_the_state():
    # Where f(z) = z the difference is zero, and 0 / inf is 0.
    points = torch.tensor([[[0.5, 0.5]], [[1e30, 1e30]], [[0.25, 0.25]]])
    g = lambda z: torch.where(z < 1, z / (1 - z), z)  # noqa: E731
    eq = fixed_point(g, points[0], solver=Scripted(points=points, max_evals=3, tol=1e-3))
    assert eq.stats.status.tolist() == [Status.NON_FINITE]
    assert eq.z.tolist() == [[0.5, 0.5]]
    assert eq.stats.residual.tolist() == pytest.approx([0.5])


def test_an_image_of_zero_is_worse_than_any_other_and_not_a_failure():
    points = torch.tensor([[[1e6]], [[0.5]], [[0.25]]])
    g = lambda z: torch.where(z < 1, z / (1 - z), 0)  # noqa: E731
    eq = fixed_point(g, points[0], solver=Scripted(points=points, max_evals=3, tol=1e-3))
    assert eq.stats.status.tolist() == [Status.MAX_EVALS]
    assert eq.z.tolist() == [[0.25]]


def test_rows_that_must_be_kept_are_held_still():
    # SHINE needs the history of every sample, so that finished rows ride along without moving.
    slope = torch.tensor([[0.0], [0.5], [0.9], [-0.9]], dtype=torch.float64)
    g = Counted(lambda z: slope * torch.tanh(z) + 1)
    z0 = torch.zeros(4, 3, dtype=torch.float64)
    with torch.no_grad():
        z, stats, _ = solve(g, z0, (), solver=Broyden(tol=1e-9), layout=Layout(z0), options=Options(keep_rows=True))
    assert set(g.rows) == {4}
    assert stats.converged.all()
    points = torch.stack(g.points)
    for sample, count in enumerate(stats.num_evals.tolist()):
        assert torch.equal(points[count - 1 :, sample], z[sample].expand(len(points) - count + 1, 3))


class TestPatience:
    """A sample is finished when it has met the tolerance several times in a row."""

    @staticmethod
    def visiting(x):
        """Return a map whose residual is small at evaluation 3 only, and then from evaluation 8 on."""
        calls = []

        def f(z):
            calls.append(None)
            quiet = len(calls) == 3 or len(calls) >= 8
            return z + (1e-6 if quiet else 0.1) * z

        return f

    def test_a_short_visit_does_not_count(self):
        z0 = torch.ones(2, 3)
        for (patience, expected), adjoint in itertools.product(((1, 3), (2, 9), (4, 11)), (Implicit(), Reversible())):
            solver = Picard(max_evals=20, tol=1e-3, patience=patience, damping=0.5)
            with torch.no_grad():
                eq = fixed_point(self.visiting(z0), z0, solver=solver, adjoint=adjoint)
            assert eq.stats.num_evals.tolist() == [expected] * 2
            assert eq.stats.converged.all()
