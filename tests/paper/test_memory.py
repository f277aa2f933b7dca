import pytest
import torch
from paper.made_up import leave_old_garbage, outcomes

from steadeq.lab.tasks import Classification
from steadeq.models import ConvDEQ
from steadeq.paper import memory

CPU = torch.device("cpu")
KB = 1024


@pytest.fixture(scope="module", autouse=True)
def _without_old_garbage():
    leave_old_garbage()


def subject():
    torch.manual_seed(0)
    model = ConvDEQ(channels=4, hidden=4)
    return memory.Subject(
        model=model, task=Classification(), x=torch.randn(8, 1, 4, 4), y=torch.zeros(8, dtype=torch.long)
    )


def test_tensors_count_as_long_as_they_live_and_views_do_not():
    there = torch.zeros(256)

    def run():
        a = torch.empty(256)  # 1 KB
        view = a.reshape(16, 16)[1:]
        del a
        b = torch.empty(512)  # 2 KB more, as the view keeps the first
        del view
        torch.empty(256)
        return b + there.sum()

    # b, and the sum of 4 bytes, and what is returned.
    assert memory.peak_bytes(run, CPU) == 2 * KB + 4 + 2 * KB


def test_what_backward_needs_counts_until_then():
    x = torch.zeros(256, requires_grad=True)

    def forward():
        return x.exp().exp().exp()  # each keeps its result

    assert memory.peak_bytes(forward, CPU) == 3 * KB
    with torch.no_grad():
        assert memory.peak_bytes(forward, CPU) == 2 * KB


def test_work_in_place_and_memory_that_was_there_count_nothing():
    there = torch.zeros(256)
    assert memory.peak_bytes(lambda: there.add_(1).view(2, 128).mul_(2), CPU) == 0


def test_a_dozen_evaluations_cost_a_deq_nothing_and_a_deep_network_much():
    tested = subject()

    def growth(solver):
        few, many = (memory.peak_bytes(lambda: tested.run(solver, n, "training"), CPU) for n in (4, 12))  # noqa: B023
        return many / few

    assert growth(memory.PLAIN) == pytest.approx(1, abs=0.02)
    assert growth(memory.UNROLLED) > 2
    assert growth(memory.WHOLE) > growth(memory.BROYDEN) > growth(memory.ANDERSON) > 1


def test_a_row_has_all_peaks_of_a_solver_at_a_budget():
    rows = memory.measure("conv", subject(), CPU, budgets=(2,))
    assert [row.solver for row in rows] == [*memory.SOLVERS, memory.UNROLLED]
    assert all(row.training_penalized > row.training > row.inference > row.state for row in rows)


def test_small_models_of_all_kinds_are_measured():
    found = memory.subjects(CPU)
    assert list(found) == ["convolution", "MDEQ", "Transformer"]
    for one in found.values():
        one.run(memory.ANDERSON, 2, "training_penalized")
        one.run(memory.UNROLLED, 2, "inference")


def made_up(*, slope=10.0, gross=1.2, unrolled=100.0, loop=100.0):
    """Return peaks of a cell: unrolled to each depth, and of a DEQ with two states an evaluation, or none."""
    rows = []

    def add(solver, budget, training, penalized, inference):
        numbers = {"training": int(training), "training_penalized": int(penalized), "inference": int(inference)}
        rows.append(memory.Peak(model="cell", solver=solver, budget=budget, **numbers, state=10))

    for budget in memory.BUDGETS:
        history = dict.fromkeys((memory.PLAIN, memory.ANDERSON, memory.BROYDEN), 0)
        history |= {memory.WHOLE: 20 * budget, memory.GMRES_BACKWARD: 10 * budget}
        for solver, states in history.items():
            training = 300 + states + (slope - 10) * budget
            add(solver, budget, training, gross * training, loop + states)
        add(memory.UNROLLED, budget, unrolled * budget, unrolled * budget, 100)
    return memory.Summary(device="cpu", rows=rows)


def test_claims_are_judged_by_the_numbers():
    def judged(**changes):
        return outcomes(memory.MEMORY, made_up(**changes))

    assert judged() == [True] * 8
    assert judged(slope=11) == [False, *[True] * 7]
    assert judged(unrolled=30) == [True, True, True, False, True, True, True, True]
    assert judged(gross=1.5) == [True, True, True, True, True, False, True, True]
    assert judged(gross=2.5) == [True, True, True, True, False, False, True, True]
    assert judged(loop=300) == [True, True, True, True, True, True, False, False]
