import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from steadeq import (
    DEQ,
    Anderson,
    ClosedLoop,
    Constant,
    Equilibrium,
    Increments,
    JacobianRegularizer,
    Linear,
    OperatorNormRegularizer,
    StopAfter,
    spectral_radius,
)


def halve(z):
    return 0.5 * z


def test_tau_follows_the_probability_and_skips_the_cell_otherwise():
    calls = 0

    def f(z):
        nonlocal calls
        calls += 1
        return 0.5 * z

    regularizer = JacobianRegularizer(weight=1.0, probability=0.3)
    assert [regularizer(Equilibrium.at(f, torch.ones(1, 2)), step=step).item() > 0 for step in range(50)] == [
        regularizer.tau(step) for step in range(50)
    ]
    applied = [regularizer.tau(step) for step in range(2000)]
    assert calls == sum(applied[:50])
    assert abs(sum(applied) / 2000 - 0.3) < 0.04
    # No pattern: runs of applied steps are as frequent as for independent draws.
    pairs = sum(a and b for a, b in pairwise(applied))
    assert abs(pairs / 2000 - 0.09) < 0.03


def test_tau_draws_what_it_always_drew():
    # Published runs had their penalty at these steps.
    regularizer = JacobianRegularizer(weight=1.0, probability=0.4)
    assert [step for step in range(40) if regularizer.tau(step)] == [0, 6, 14, 18, 21, 22, 24, 26, 28, 30, 32, 36, 39]
    assert not any(JacobianRegularizer(weight=1.0, probability=0.0).tau(step) for step in range(100))
    assert all(JacobianRegularizer(weight=1.0).tau(step) for step in range(100))


@pytest.mark.parametrize("name", ["schedule", "probability_schedule"])
def test_a_penalty_that_has_stopped_costs_nothing(name):
    def f(z):
        raise AssertionError("evaluated")

    regularizer = JacobianRegularizer(weight=1.0, **{name: StopAfter(step=5)})
    assert all(regularizer(Equilibrium.at(f, torch.ones(1, 2)), step=step).item() == 0 for step in range(5, 30))
    assert not regularizer.is_applied(5)
    assert regularizer.is_applied(4)


def test_closed_loop_raises_gamma_above_the_target_and_lowers_it_below():
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.1, rate=0.1, gain=1.0))
    regularizer.observe(residual=0.2)
    assert regularizer.gamma(0) == pytest.approx(2**1.1)
    regularizer.observe(residual=torch.tensor(0.1, dtype=torch.float64))
    assert regularizer.gamma(0) == pytest.approx(2**0.1)
    regularizer.observe(residual=0.05)
    assert regularizer.gamma(0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("observed", "weight", "start", "most", "target"),
    [("residual", 0.01, 1.0, 0.2, 0.05), ("residual", 50.0, 1.0, 0.2, 0.05), ("evals", 0.1, 30.0, 30.0, 10.0)],
)
def test_closed_loop_settles_on_a_plant_that_falls_with_gamma_after_a_delay(observed, weight, start, most, target):
    regularizer = JacobianRegularizer(weight=weight, schedule=ClosedLoop(observed=observed, target=target))
    value = start
    for _ in range(600):
        value += 0.05 * (most / (1 + regularizer.gamma(0)) - value)
        regularizer.observe(**{observed: value})
    assert value == pytest.approx(target, rel=0.05)
    assert regularizer.gamma(0) == pytest.approx(most / target - 1, rel=0.1)


@pytest.mark.parametrize("observed", ["residual", "spectral_radius", "evals"])
def test_closed_loop_answers_to_what_it_observes_alone(observed):
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(observed=observed, target=0.5))
    names = {"residual", "spectral_radius", "evals"}
    regularizer.observe(**dict.fromkeys(names - {observed}, 9.0))
    assert regularizer.gamma(0) == 1
    regularizer.observe(**dict.fromkeys(names, torch.tensor(1.0)))
    assert regularizer.gamma(0) > 1
    regularizer.observe(**{observed: 0.1})
    assert regularizer.gamma(0) < 1


def test_the_guard_keeps_the_term_below_its_share_of_the_task_loss():
    regularizer = JacobianRegularizer(weight=50.0, schedule=ClosedLoop(target=0.1, max_share=0.5))
    W = torch.eye(4).requires_grad_()
    z = torch.ones(2, 4)
    term = regularizer(Equilibrium.at(lambda z: z @ W.T, z), step=0, task_loss=torch.tensor(2.0))
    assert term.item() == pytest.approx(1.0)
    term.backward()
    assert W.grad.abs().sum() > 0
    free = regularizer(Equilibrium.at(lambda z: z @ W.T, z), step=0, task_loss=1e6)
    assert free.item() == pytest.approx(50.0)


def test_the_guard_does_not_fade_with_the_task_loss():
    """A network that knows its training data by heart has no loss left, and needs the penalty as before."""

    def term(regularizer, task_loss):
        return regularizer(Equilibrium.at(lambda z: 0.5 * z, torch.ones(2, 4)), step=0, task_loss=task_loss).item()

    regularizer = JacobianRegularizer(weight=50.0, schedule=ClosedLoop(target=0.1, max_share=0.5))
    assert term(regularizer, float("nan")) != term(regularizer, float("nan")), "says nothing about later ones"
    assert term(regularizer, 2.0) == pytest.approx(1.0)
    assert term(regularizer, 1e-6) == pytest.approx(1.0)
    assert term(regularizer, 8.0) == pytest.approx(4.0)
    assert term(regularizer, 1e-6) == pytest.approx(1.0), "one bad batch does not loosen it"
    resumed = JacobianRegularizer(weight=50.0, schedule=ClosedLoop(target=0.1, max_share=0.5))
    resumed.load_state_dict(regularizer.state_dict())
    assert term(resumed, 1e-6) == pytest.approx(1.0)
    own = regularizer.for_run(num_steps=10, steps_per_epoch=5)
    assert term(own, 1e-6) == pytest.approx(5e-7), "another run begins anew"


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


def train(schedule, solver, *, weight=0.1, gain=1.0, rate=3e-3, num_steps=300, num_last=30, see_radius=False):
    """Fit a task that wants long memory (large Jacobians), and return means of what was measured in the last steps."""
    torch.manual_seed(0)
    layer, head = DEQ(Cell(), solver=solver), torch.nn.Linear(16, 4)
    with torch.no_grad():
        layer.cell.linear.weight.mul_(gain)
    x, y = torch.randn(64, 16), torch.randn(64, 4)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=rate)
    regularizer, measured = JacobianRegularizer(weight=weight, schedule=schedule), []
    for step in range(num_steps):
        eq = layer.solve(x)
        values = {"residual": eq.stats.residual.mean().item(), "evals": eq.stats.num_evals.double().mean().item()}
        if see_radius:
            some = Equilibrium.at(eq.f, eq.z.detach()[:8], *(part[:8] for part in eq.inputs))
            values["spectral_radius"] = spectral_radius(some, max_products=16).value.mean().item()
        loss = (head(eq.z) - y).square().mean()
        regularizer.observe(**values)
        loss = loss + regularizer(eq, step=step, task_loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        measured.append(values)
    return {name: sum(values[name] for values in measured[-num_last:]) / num_last for name in values}


def test_closed_loop_holds_the_residual_of_a_real_layer_that_drifts_away_without_it():
    options = {"solver": Anderson(max_evals=4, tol=1e-4), "rate": 1e-2, "num_steps": 120}
    assert train(Constant(), weight=0.0, **options)["residual"] > 0.2
    assert train(ClosedLoop(target=0.02, rate=0.3), **options)["residual"] == pytest.approx(0.02, rel=0.3)


UNSTABLE = {"solver": Anderson(max_evals=12, tol=1e-2), "gain": 4.0, "rate": 1e-2, "num_steps": 250, "num_last": 50}


@pytest.mark.slow
def test_closed_loop_reaches_its_target_from_an_unstable_start_unless_its_guard_holds_it_back_and_says_so_once():
    assert train(ClosedLoop(target=0.02), **UNSTABLE)["residual"] == pytest.approx(0.02, rel=0.3)
    with pytest.warns(UserWarning, match=r"^max_share of ClosedLoop\(.*stayed above the target") as caught:
        assert train(ClosedLoop(target=0.02, max_share=0.5), **UNSTABLE)["residual"] > 0.06
    assert sum("max_share of" in str(warning.message) for warning in caught) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("observed", "target"), [("evals", 8.0), ("spectral_radius", 0.4)])
def test_closed_loop_holds_evaluations_and_the_radius_of_a_real_layer(observed, target):
    options = {"solver": Anderson(max_evals=30, tol=1e-3), "see_radius": observed == "spectral_radius"}
    assert train(Constant(), weight=0.0, **options)[observed] > 1.4 * target
    loop = ClosedLoop(observed=observed, target=target, rate=0.2, max_share=10.0)
    assert train(loop, **options)[observed] == pytest.approx(target, rel=0.15)


def test_the_guard_gives_way_while_it_alone_keeps_the_loop_from_its_target_and_the_base_does_not_pile_up():
    loop = ClosedLoop(target=0.1, rate=0.1, gain=1.0, first_share=0.5, max_share=2.0)
    regularizer = JacobianRegularizer(weight=50.0, schedule=loop)

    def term():
        eq = Equilibrium.at(lambda z: 1.0 * z, torch.ones(2, 4))
        return regularizer(eq, step=0, task_loss=1.0).item()

    terms = []
    for _ in range(30):
        terms.append(term())
        obstacle = regularizer.observe(residual=0.1 * math.e)
    assert terms[:2] == pytest.approx([0.5, 0.5 * math.exp(0.1)])
    assert terms[-1] == pytest.approx(2.0)
    assert obstacle == "max_share"
    regularizer.observe(residual=0.1)
    assert regularizer.gamma(0) == pytest.approx(50.0), "the base is where it was"
    for _ in range(60):
        assert regularizer.observe(residual=0.1 / math.e) is None
    assert term() < 0.5
    assert regularizer.state_dict()["schedule"][2] == pytest.approx(0.5), "and the guard is as it was at first"


def test_a_maximum_that_holds_a_closed_loop_back_is_named():
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.1, maximum=2.0))
    assert regularizer.observe(residual=0.2) is None
    for _ in range(60):
        obstacle = regularizer.observe(residual=0.2)
    assert obstacle == "maximum"
    assert regularizer.observe(residual=0.05) is None


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: JacobianRegularizer(weight=-1.0), ValueError, "weight is -1.0; it must be a finite number >= 0"),
        (lambda: JacobianRegularizer(probability=1.5), ValueError, r"probability is 1.5; it must be in \[0, 1\]"),
        (lambda: OperatorNormRegularizer(probability=2), ValueError, r"probability is 2; it must be in \[0, 1\]"),
        (lambda: JacobianRegularizer(num_probes=0), ValueError, "num_probes is 0; it must be an integer >= 1"),
        (lambda: JacobianRegularizer(probe="uniform"), ValueError, "probe is 'uniform'; it must be one of 'radem"),
        (lambda: JacobianRegularizer(estimator="jvp"), ValueError, "estimator is 'jvp'; it must be one of 'vjp', 'dif"),
        (
            lambda: JacobianRegularizer(schedule="linear"),
            TypeError,
            r"^schedule is 'linear'; it must be a steadeq schedule, such as Linear",
        ),
        (
            lambda: JacobianRegularizer(probability_schedule=0.5),
            TypeError,
            r"^probability_schedule is 0.5; it must be a steadeq schedule, such as",
        ),
        *(
            (
                lambda loop=loop: JacobianRegularizer(probability_schedule=loop),
                ValueError,
                r"^probability_schedule is .*; it must not be a closed loop, .*\.$",
            )
            for loop in (ClosedLoop(), StopAfter(step=5, schedule=ClosedLoop()))
        ),
    ],
)
def test_bad_arguments_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("step", [0, 9])
def test_what_is_no_equilibrium_is_refused_whether_the_penalty_is_applied_or_not(step):
    regularizer = JacobianRegularizer(weight=1.0, schedule=StopAfter(step=5))
    with pytest.raises(TypeError, match=r"^eq is a function; it must be an Equilibrium\. .*\.$"):
        regularizer(halve, step=step)


def test_evaluating_gives_the_term_and_the_bare_penalty():
    eq = Equilibrium.at(halve, torch.ones(2, 4, dtype=torch.float64))
    regularizer = JacobianRegularizer(weight=3.0, schedule=StopAfter(step=5))
    term, bare = regularizer.evaluate(eq, step=0)
    assert (term.item(), bare.item()) == pytest.approx((0.75, 0.25))
    assert not bare.requires_grad
    term, bare = regularizer.evaluate(eq, step=5)
    assert term == 0
    assert term.dtype == torch.float64
    assert bare is None


@pytest.mark.parametrize(
    ("regularizer", "is_active"),
    [
        (JacobianRegularizer(), False),
        (JacobianRegularizer(weight=1.0), True),
        (JacobianRegularizer(weight=1.0, probability=0.0), False),
        (JacobianRegularizer(schedule=Linear(end=1.0)), True),
        (JacobianRegularizer(schedule=ClosedLoop()), True),
        (JacobianRegularizer(weight=1.0, schedule=StopAfter(epoch=0)), False),
        (JacobianRegularizer(weight=1.0, probability=0.0, probability_schedule=Linear(end=0.5)), True),
        (JacobianRegularizer(probability=0.0, probability_schedule=Linear(end=0.5)), False),
        (JacobianRegularizer(weight=1.0, probability_schedule=StopAfter(step=0)), False),
        (OperatorNormRegularizer(weight=1.0), True),
    ],
)
def test_it_says_whether_there_is_a_penalty_at_some_step(regularizer, is_active):
    assert regularizer.is_active == is_active


class TestProbabilitySchedule:
    ramp = Linear(end=0.8, num_steps=1000)

    def test_p_moves_with_the_step(self):
        regularizer = JacobianRegularizer(weight=1.0, probability=0.2, probability_schedule=self.ramp)
        found = [regularizer.probability_at(step) for step in (0, 500, 1000, 5000)]
        assert found == pytest.approx([0.2, 0.5, 0.8, 0.8])

    def test_a_larger_p_only_adds_steps(self):
        constant = JacobianRegularizer(weight=1.0, probability=0.2)
        rising = JacobianRegularizer(weight=1.0, probability=0.2, probability_schedule=self.ramp)
        before, after = ({step for step in range(1000) if r.tau(step)} for r in (constant, rising))
        assert before < after

    def test_tau_depends_on_seed_and_step_alone(self):
        first = JacobianRegularizer(weight=1.0, probability=0.2, probability_schedule=self.ramp, seed=3)
        backwards = [first.tau(step) for step in reversed(range(200))]
        first.observe(residual=1.0)
        torch.rand(3)
        other = OperatorNormRegularizer(weight=9.0, probability=0.2, probability_schedule=self.ramp, seed=3)
        assert [other.tau(step) for step in range(200)] == backwards[::-1]
        other.seed = 4
        assert [other.tau(step) for step in range(200)] != backwards[::-1]

    @pytest.mark.parametrize(
        ("schedule", "late"),
        [
            (Increments(increment=0.3, every=10), 1.0),
            (Increments(increment=-0.3, every=10), 0.0),
            (Linear(end=3.0, num_steps=10), 1.0),
            (Increments(increment=0.3, every=10, maximum=0.9), 0.9),
            (StopAfter(step=30), 0.0),
        ],
    )
    def test_p_stays_a_probability(self, schedule, late):
        regularizer = JacobianRegularizer(weight=1.0, probability=0.5, probability_schedule=schedule)
        assert all(0 <= regularizer.probability_at(step) <= 1 for step in range(100))
        assert regularizer.probability_at(99) == late

    def test_a_run_fills_in_its_lengths(self):
        regularizer = JacobianRegularizer(
            weight=1.0, probability=0.0, schedule=Linear(end=2.0), probability_schedule=Linear(end=1.0, begin=20)
        )
        own = regularizer.for_run(num_steps=120, steps_per_epoch=10)
        assert [own.probability_at(step) for step in (0, 20, 70, 120)] == pytest.approx([0, 0, 0.5, 1])
        assert own.gamma(60) == pytest.approx(1.5)
        with pytest.raises(ValueError, match=r"^num_steps is None; .*\.$"):
            regularizer.tau(0)


class TestForRun:
    eq = Equilibrium.at(halve, torch.ones(2, 4))

    def test_seeds_add_up(self):
        regularizer = JacobianRegularizer(weight=1.0, probability=0.5, seed=3)
        own = regularizer.for_run(num_steps=10, steps_per_epoch=5, seed=4)
        assert own.seed == 7
        same = JacobianRegularizer(weight=1.0, probability=0.5, seed=7)
        assert [own.tau(step) for step in range(50)] == [same.tau(step) for step in range(50)]

    def test_a_run_has_a_regularizer_of_its_own(self):
        regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.1))
        own = regularizer.for_run(num_steps=10, steps_per_epoch=5)
        own.observe(residual=1.0)
        assert own.gamma(0) > 1
        assert regularizer.gamma(0) == 1


def test_a_closed_loop_that_stops_answers_until_then_is_guarded_and_part_of_a_checkpoint():
    loop = ClosedLoop(target=0.1, rate=0.1, gain=1.0, max_share=0.5)
    regularizer, other = (
        JacobianRegularizer(weight=1.0, schedule=StopAfter(epoch=2, schedule=loop)).for_run(
            num_steps=100, steps_per_epoch=5
        )
        for _ in range(2)
    )
    regularizer.observe(residual=0.2)
    assert regularizer.gamma(9) == pytest.approx(2**1.1)
    assert regularizer.gamma(10) == 0
    other.load_state_dict(regularizer.state_dict())
    assert other.gamma(0) == regularizer.gamma(0)
    for _ in range(50):
        regularizer.observe(residual=10.0)
    eq = Equilibrium.at(halve, torch.ones(2, 4))
    assert regularizer(eq, step=0, task_loss=2.0).item() == pytest.approx(1.0)
    assert regularizer(eq, step=0).item() > 1


class TestSteps:
    def cell(self):
        return Equilibrium.at(nn.Linear(3, 3), torch.zeros(2, 3))

    def test_the_count_is_part_of_a_checkpoint_and_follows_a_step_that_is_told(self):
        first, second = (JacobianRegularizer(weight=1.0, schedule=Linear(end=0.0, num_steps=10)) for _ in range(2))
        eq = self.cell()
        first(eq, step=7)
        second.load_state_dict(first.state_dict())
        assert second.state_dict()["next_step"] == 8
        expected = first(eq, step=8, generator=torch.Generator().manual_seed(0))
        assert second(eq, generator=torch.Generator().manual_seed(0)) == expected
