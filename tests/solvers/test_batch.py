from dataclasses import replace

import pytest
import torch
from problems import DIM, mixed
from stubs import Counted, replay

from steadeq import Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point

SOLVERS = [
    Picard(max_evals=60, tol=1e-6, damping=0.8),
    Anderson(max_evals=40, tol=1e-6),
    Anderson(max_evals=40, tol=1e-6, memory=3, mixing=0.8),
    Broyden(max_evals=40, tol=1e-6, memory=4),
    NewtonKrylov(max_evals=40, tol=1e-6, memory=4),
]
BATCH = 12


def mixed_network(dtype=torch.float64, batch_size=BATCH):
    """Tanh cells of rising gain, so that neighbors need from 3 evaluations to more than the budget."""
    weight = torch.randn(DIM, DIM, dtype=torch.float64)
    weight = (weight / torch.linalg.matrix_norm(weight, 2)).to(dtype)
    gain = torch.linspace(0.1, 2.5, batch_size, dtype=dtype)[torch.randperm(batch_size), None]
    x = 0.3 * torch.randn(batch_size, DIM, dtype=dtype)
    # Products are summed by hand: a matrix product may round a row differently in a batch of another size.
    f = lambda z, gain, x: torch.tanh(gain * (z[:, None] * weight).sum(-1) + x)  # noqa: E731
    return f, torch.zeros(batch_size, DIM, dtype=dtype), (gain, x)


def rows_of(eq, rows):
    return eq.z[rows], eq.stats.status[rows], eq.stats.num_evals[rows], eq.stats.residual[rows]


def assert_same_result(actual, expected):
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-6, atol=1e-8)
    assert torch.equal(actual[1], expected[1])
    assert torch.equal(actual[2], expected[2])
    torch.testing.assert_close(actual[3], expected[3], rtol=1e-3, atol=1e-8)


@pytest.fixture(params=["affine", "network"])
def problem(request):
    if request.param == "network":
        return mixed_network()
    affine = mixed(torch.float64, BATCH)
    return affine.f, affine.z0, affine.inputs


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_sample_is_solved_among_others_as_it_is_alone(solver, problem, compact):
    f, z0, inputs = problem
    together = fixed_point(f, z0, *inputs, solver=solver, compact=compact)
    assert together.stats.num_evals.min() < together.stats.num_evals.max()
    for sample in range(0, BATCH, 2):
        row = slice(sample, sample + 1)
        alone = fixed_point(f, z0[row], *(x[row] for x in inputs), solver=solver)
        assert_same_result(rows_of(alone, slice(None)), rows_of(together, row))


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
class TestOneNonFiniteSample:
    # The sample turns bad at once, or once the others have a history.
    @pytest.mark.parametrize(("bad", "bad_from"), [("nan", 1), ("inf", 3), ("-inf", 6)])
    @pytest.mark.parametrize("compact", [False, True])
    def test_leaves_its_neighbors_alone(self, solver, problem, compact, bad, bad_from):
        f, z0, inputs = problem
        is_bad = torch.zeros(BATCH, 1, dtype=torch.bool)
        reference = fixed_point(f, z0, *inputs, solver=solver, compact=compact)
        sample = int(reference.stats.num_evals.argmax())
        is_bad[sample] = True
        good = ~is_bad[:, 0]
        calls = []

        def breaking(z, is_bad, *inputs):
            calls.append(1)
            return torch.where(is_bad & (len(calls) >= bad_from), float(bad), f(z, *inputs))

        eq = fixed_point(breaking, z0, is_bad, *inputs, solver=solver, compact=compact)
        assert eq.stats.status[sample] == Status.NON_FINITE
        assert eq.stats.num_evals[sample] == bad_from
        assert eq.z.isfinite().all()
        if compact:
            assert_same_result(rows_of(eq, good), rows_of(reference, good))
        else:
            for actual, expected in zip(rows_of(eq, good), rows_of(reference, good), strict=True):
                assert torch.equal(actual, expected)

    def test_keeps_the_best_of_what_came_before(self, solver, problem):
        f, z0, inputs = problem
        calls = []

        def breaking(z, *inputs):
            calls.append(1)
            return f(z, *inputs) if len(calls) < 5 else torch.full_like(z, float("nan"))

        with torch.no_grad():
            eq = fixed_point(breaking, z0, *inputs, solver=replace(solver, tol=0), compact=False)
            before = fixed_point(f, z0, *inputs, solver=replace(solver, tol=0), compact=False)
        assert eq.stats.status.tolist() == [Status.NON_FINITE] * BATCH
        assert eq.stats.num_evals.tolist() == [5] * BATCH
        assert eq.stats.trace[4].isinf().all()
        assert torch.equal(eq.stats.residual, before.stats.trace[:4].amin(0))
        assert torch.equal(eq.stats.trace[:4], before.stats.trace[:4])


@pytest.mark.parametrize("solver", [Anderson(max_evals=30), Broyden(max_evals=30)], ids=repr)
def test_no_rejected_row_is_the_same_as_no_mask(solver):
    z = torch.randn(8, 2, 5, dtype=torch.float64)
    fz = torch.randn(8, 2, 5, dtype=torch.float64)
    nobody, first = torch.tensor([False, False]), torch.tensor([True, False])
    answers = []
    for quiet in (None, nobody):
        masks = [quiet, quiet, first, quiet, first, first, quiet, first]
        with torch.no_grad():
            answers.append(replay(solver, z, fz, masks)[1])
    torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=0)


class TestCompaction:
    @pytest.mark.parametrize("solver", SOLVERS, ids=repr)
    def test_rows_seen_by_f_fall_as_samples_finish(self, solver):
        problem = mixed(torch.float64, 16)
        f = Counted(problem.f)
        fixed_point(f, problem.z0, *problem.inputs, solver=solver, compact=False)
        assert set(f.rows) == {16}
        with torch.no_grad():
            # The first time that samples leave, one more evaluation tells whether the others are mapped as before.
            fixed_point(f, problem.z0, *problem.inputs, solver=solver, compact=True)
            f.rows.clear()
            eq = fixed_point(f, problem.z0, *problem.inputs, solver=solver, compact=True)
        assert f.rows == sorted(f.rows, reverse=True)
        assert f.rows[0] == 16
        running = [int((eq.stats.num_evals >= k).sum()) for k in range(1, f.calls + 1)]
        # Nobody who runs is left out, and those who are done are at most a quarter of the rows.
        assert all(run <= rows <= max(run * 4 / 3, run) + 1 for run, rows in zip(running, f.rows, strict=True))

    @pytest.mark.parametrize(
        ("batch_size", "with_inputs", "shrinks"), [(16, True, True), (7, True, False), (16, False, False)]
    )
    def test_the_default_needs_inputs_and_enough_samples(self, batch_size, with_inputs, shrinks):
        problem = mixed(torch.float64, batch_size)
        f = Counted(problem.f if with_inputs else lambda z: problem.f(z, *problem.inputs))
        inputs = problem.inputs if with_inputs else ()
        with torch.no_grad():
            fixed_point(f, problem.z0, *inputs, solver=Picard(max_evals=50))
        assert (min(f.rows) < batch_size) == shrinks

    @pytest.mark.parametrize("batch_size", [2, 8])
    def test_such_a_closure_with_compaction_forced_is_refused_with_a_hint(self, batch_size):
        problem = mixed(torch.float64, batch_size)
        with pytest.raises((ValueError, RuntimeError), match=r"whole\s+batch.*pass (it|that after z0) as an input"):
            fixed_point(lambda z: problem.f(z, *problem.inputs), problem.z0, solver=Picard(max_evals=60), compact=True)

    def test_an_error_of_f_itself_is_not_blamed_on_compaction(self):
        def f(z, x):
            raise RuntimeError("my own error")

        with pytest.raises(RuntimeError, match=r"^my own error$"):
            fixed_point(f, torch.zeros(8, 2), torch.zeros(8, 2), compact=True)

    @pytest.mark.parametrize("solver", SOLVERS, ids=repr)
    def test_nested_inputs_follow_the_samples(self, solver):
        problem = mixed(torch.float64, 16)
        radius, b = problem.inputs

        def f(z, tree, flag, nothing):
            assert flag == "flag"
            assert nothing is None
            assert tree["b"][0].shape[0] == z.shape[0]
            return problem.f(z, tree["radius"], tree["b"][0])

        nested = fixed_point(f, problem.z0, {"radius": radius, "b": [b]}, "flag", None, solver=solver, compact=True)
        plain = fixed_point(problem.f, problem.z0, radius, b, solver=solver, compact=True)
        assert torch.equal(nested.z, plain.z)
        assert torch.equal(nested.stats.num_evals, plain.stats.num_evals)

    def test_structured_states_are_compacted(self):
        problem = mixed(torch.float64, 16)
        deal, gather = lambda z: (z[:, :2], {"b": z[:, 2:]}), lambda s: torch.cat([s[0], s[1]["b"]], 1)
        f = Counted(lambda s, *inputs: deal(problem.f(gather(s), *inputs)))
        with torch.no_grad():
            eq = fixed_point(f, deal(problem.z0), *problem.inputs, solver=Anderson(tol=1e-8))
        assert min(f.rows) < 16
        assert eq.stats.converged.all()
        assert (problem.error(gather(eq.z)) < 1e-6).all()
