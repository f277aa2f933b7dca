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
    ResidualRegularizer,
    StopAfter,
    jacobian_penalty,
    operator_norm,
    operator_norm_penalty,
    spectral_radius,
)


def halve(z):
    return 0.5 * z


def test_the_term_is_weight_times_penalty_on_applied_steps():
    term = JacobianRegularizer(weight=3.0)(Equilibrium.at(halve, torch.ones(2, 4)), step=0)
    assert term.item() == pytest.approx(3 * 0.25)


def test_tau_follows_the_probability_and_skips_the_cell_otherwise():
    calls = 0

    def f(z):
        nonlocal calls
        calls += 1
        return 0.5 * z

    regularizer = JacobianRegularizer(weight=1.0, probability=0.3)
    applied = [regularizer(Equilibrium.at(f, torch.ones(1, 2)), step=step).item() > 0 for step in range(2000)]
    assert calls == sum(applied)
    assert abs(sum(applied) / 2000 - 0.3) < 0.04
    # No pattern: runs of applied steps are as frequent as for independent draws.
    pairs = sum(a and b for a, b in pairwise(applied))
    assert abs(pairs / 2000 - 0.09) < 0.03


def test_tau_depends_on_seed_and_step_alone():
    first, second = (JacobianRegularizer(weight=1.0, probability=0.5, seed=7) for _ in range(2))
    torch.rand(3)
    assert [first.tau(step) for step in range(50)] == [second.tau(step) for step in range(50)]
    other = JacobianRegularizer(weight=1.0, probability=0.5, seed=8)
    assert [first.tau(step) for step in range(50)] != [other.tau(step) for step in range(50)]


def test_tau_draws_what_it_always_drew():
    # Published runs had their penalty at these steps.
    regularizer = JacobianRegularizer(weight=1.0, probability=0.4)
    assert [step for step in range(40) if regularizer.tau(step)] == [0, 6, 14, 18, 21, 22, 24, 26, 28, 30, 32, 36, 39]


@pytest.mark.parametrize(("probability", "applied"), [(0.0, 0), (1.0, 100)])
def test_probability_zero_never_applies_and_one_always(probability, applied):
    regularizer = JacobianRegularizer(weight=1.0, probability=probability)
    assert sum(regularizer.tau(step) for step in range(100)) == applied


def test_a_stopped_penalty_costs_nothing():
    def f(z):
        raise AssertionError("evaluated")

    regularizer = JacobianRegularizer(weight=1.0, schedule=StopAfter(step=1))
    assert regularizer(Equilibrium.at(f, torch.ones(1, 2)), step=1).item() == 0


def test_closed_loop_raises_gamma_above_the_target_and_lowers_it_below():
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.1, rate=0.1, gain=1.0))
    regularizer.observe(residual=0.2)
    assert regularizer.gamma(0) == pytest.approx(2**1.1)
    regularizer.observe(residual=torch.tensor(0.1, dtype=torch.float64))
    assert regularizer.gamma(0) == pytest.approx(2**0.1)
    regularizer.observe(residual=0.05)
    assert regularizer.gamma(0) == pytest.approx(0.5)


@pytest.mark.parametrize("weight", [0.01, 3.0, 50.0])
def test_closed_loop_settles_on_a_plant_whose_residual_falls_with_gamma_after_a_delay(weight):
    regularizer = JacobianRegularizer(weight=weight, schedule=ClosedLoop(target=0.05))
    residual = 1.0
    for _ in range(400):
        residual += 0.05 * (0.2 / (1 + regularizer.gamma(0)) - residual)
        regularizer.observe(residual=residual)
    assert residual == pytest.approx(0.05, rel=0.05)
    assert regularizer.gamma(0) == pytest.approx(3.0, rel=0.1)


def test_closed_loop_ignores_what_it_does_not_measure():
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.9, observed="spectral_radius"))
    regularizer.observe(residual=5.0)
    assert regularizer.gamma(0) == 1.0
    regularizer.observe(spectral_radius=1.8)
    assert regularizer.gamma(0) > 1.0


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


def test_state_dict_carries_gamma():
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.1))
    regularizer.observe(residual=1.0)
    other = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.1))
    other.load_state_dict(regularizer.state_dict())
    assert other.gamma(0) == regularizer.gamma(0) > 1


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


def fit(schedule_or_none):
    """Fit a task that wants long memory (large Jacobians) and return the residual at a small budget, and the loss."""
    torch.manual_seed(0)
    layer = DEQ(Cell(), solver=Anderson(max_evals=4, tol=1e-4))
    head = torch.nn.Linear(16, 4)
    x, y = torch.randn(64, 16), torch.randn(64, 4)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=3e-3)
    regularizer = JacobianRegularizer(weight=0.1, schedule=schedule_or_none) if schedule_or_none else None
    residuals = []
    for step in range(400):
        eq = layer.solve(x)
        loss = (head(eq.z) - y).square().mean()
        if regularizer is not None:
            regularizer.observe(residual=eq.stats.residual.mean())
            loss = loss + regularizer(eq, step=step, task_loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        residuals.append(eq.stats.residual.mean().item())
    penalty = jacobian_penalty(eq, num_probes=20).item()
    return sum(residuals[-100:]) / 100, penalty


def test_closed_loop_holds_the_residual_of_a_real_layer_that_drifts_away_without_it():
    free, free_penalty = fit(None)
    held, held_penalty = fit(ClosedLoop(target=0.02))
    assert free > 0.2
    assert held == pytest.approx(0.02, rel=0.3)
    assert held_penalty < free_penalty


def fit_from_an_unstable_start(schedule):
    """Fit the task from weights four times as large; return residual and evaluations of the last steps."""
    torch.manual_seed(0)
    layer, head = DEQ(Cell(), solver=Anderson(max_evals=12, tol=1e-2)), torch.nn.Linear(16, 4)
    with torch.no_grad():
        layer.cell.linear.weight.mul_(4)
    x, y = torch.randn(64, 16), torch.randn(64, 4)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
    regularizer = JacobianRegularizer(weight=0.1, schedule=schedule)
    residuals, evals = [], []
    for step in range(250):
        eq = layer.solve(x)
        loss = (head(eq.z) - y).square().mean()
        loss = loss + regularizer(eq, step=step, task_loss=loss)
        residuals.append(eq.stats.residual.mean().item())
        evals.append(eq.stats.num_evals.double().mean().item())
        regularizer.observe(residual=residuals[-1], evals=evals[-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sum(residuals[-50:]) / 50, sum(evals[-50:]) / 50


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::steadeq.ConvergenceWarning")
def test_closed_loop_reaches_its_target_from_an_unstable_start():
    residual, _ = fit_from_an_unstable_start(ClosedLoop(target=0.02))
    assert residual == pytest.approx(0.02, rel=0.3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::steadeq.ConvergenceWarning")
def test_a_closed_loop_that_its_guard_holds_back_says_so_once():
    with pytest.warns(UserWarning, match=r"^max_share of ClosedLoop\(.*stayed above the target") as caught:
        residual, _ = fit_from_an_unstable_start(ClosedLoop(target=0.02, max_share=0.5))
    assert residual > 0.06
    assert sum("max_share of" in str(warning.message) for warning in caught) == 1


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


def hold(observed, target):
    """Fit the same task by solves that may stop early; return evaluations and spectral radius of the last steps."""
    torch.manual_seed(0)
    layer, head = DEQ(Cell(), solver=Anderson(max_evals=30, tol=1e-3)), torch.nn.Linear(16, 4)
    x, y = torch.randn(64, 16), torch.randn(64, 4)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=3e-3)
    schedule = (
        Constant() if observed is None else ClosedLoop(observed=observed, target=target, rate=0.2, max_share=10.0)
    )
    regularizer = JacobianRegularizer(weight=0.0 if observed is None else 0.1, schedule=schedule)
    measured = []
    for step in range(300):
        eq = layer.solve(x)
        values = {"evals": eq.stats.num_evals.double().mean().item()}
        if observed == "spectral_radius" or step >= 270:
            some = Equilibrium.at(eq.f, eq.z.detach()[:8], *(part[:8] for part in eq.inputs))
            values["spectral_radius"] = spectral_radius(some, max_products=16).value.mean().item()
        loss = (head(eq.z) - y).square().mean()
        regularizer.observe(**values)
        loss = loss + regularizer(eq, step=step, task_loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        measured.append(values)
    return {name: sum(values[name] for values in measured[-30:]) / 30 for name in ("evals", "spectral_radius")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::steadeq.ConvergenceWarning")
@pytest.mark.parametrize(("observed", "target"), [("evals", 8.0), ("spectral_radius", 0.4)])
def test_closed_loop_holds_evaluations_and_the_radius_of_a_real_layer(observed, target):
    assert hold(None, None)[observed] > 1.4 * target
    assert hold(observed, target)[observed] == pytest.approx(target, rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": -1.0}, "weight is -1.0; it must be a finite number >= 0"),
        ({"weight": 1.0, "probability": 1.5}, r"probability is 1.5; it must be in \[0, 1\]"),
        ({"weight": 1.0, "num_probes": 0}, "num_probes is 0; it must be an integer >= 1"),
        ({"weight": 1.0, "probe": "uniform"}, "probe is 'uniform'; it must be one of 'rademacher'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        JacobianRegularizer(**arguments)


def test_what_is_no_schedule_is_refused():
    with pytest.raises(TypeError, match=r"^schedule is 'linear'; it must be a steadeq schedule, such as Linear"):
        JacobianRegularizer(weight=1.0, schedule="linear")


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


def test_fields_are_keywords_and_may_be_changed():
    with pytest.raises(TypeError):
        JacobianRegularizer(1.0)
    regularizer = JacobianRegularizer(weight=1.0)
    regularizer.weight = 2.0
    assert regularizer.gamma(0) == 2.0
    assert regularizer == JacobianRegularizer(weight=2.0)


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

    def test_as_many_steps_have_the_penalty_as_p_says_then(self):
        regularizer = JacobianRegularizer(
            weight=1.0, probability=0.0, probability_schedule=Linear(end=1.0, num_steps=9000)
        )
        taus = torch.tensor([float(regularizer.tau(step)) for step in range(9000)]).view(3, 3000)
        # Three standard errors of a count.
        assert taus.mean(dim=1).tolist() == pytest.approx([1 / 6, 1 / 2, 5 / 6], abs=0.03)

    def test_a_larger_p_only_adds_steps(self):
        constant = JacobianRegularizer(weight=1.0, probability=0.2)
        rising = JacobianRegularizer(weight=1.0, probability=0.2, probability_schedule=self.ramp)
        before, after = ({step for step in range(1000) if r.tau(step)} for r in (constant, rising))
        assert before < after

    def test_tau_depends_on_seed_and_step_alone(self):
        first = JacobianRegularizer(weight=1.0, probability=0.2, probability_schedule=self.ramp, seed=3)
        backwards = [first.tau(step) for step in reversed(range(200))]
        first.observe(residual=1.0)
        other = JacobianRegularizer(weight=9.0, probability=0.2, probability_schedule=self.ramp, seed=3)
        assert [other.tau(step) for step in range(200)] == backwards[::-1]

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

    def test_no_penalty_is_evaluated_where_p_is_zero(self):
        def f(z):
            raise AssertionError("evaluated")

        regularizer = JacobianRegularizer(weight=1.0, probability_schedule=StopAfter(step=5))
        assert all(regularizer(Equilibrium.at(f, torch.ones(1, 2)), step=step).item() == 0 for step in range(5, 30))
        assert not regularizer.is_applied(5)
        assert regularizer.is_applied(4)

    def test_a_run_fills_in_its_lengths(self):
        regularizer = JacobianRegularizer(
            weight=1.0, probability=0.0, schedule=Linear(end=2.0), probability_schedule=Linear(end=1.0, begin=20)
        )
        own = regularizer.for_run(num_steps=120, steps_per_epoch=10)
        assert [own.probability_at(step) for step in (0, 20, 70, 120)] == pytest.approx([0, 0, 0.5, 1])
        assert own.gamma(60) == pytest.approx(1.5)
        with pytest.raises(ValueError, match=r"^num_steps is None; .*\.$"):
            regularizer.tau(0)

    @pytest.mark.parametrize("schedule", [ClosedLoop(), StopAfter(step=5, schedule=ClosedLoop())])
    def test_a_closed_loop_is_refused(self, schedule):
        with pytest.raises(ValueError, match=r"^probability_schedule is .*; it must not be a closed loop, .*\.$"):
            JacobianRegularizer(weight=1.0, probability_schedule=schedule)

    def test_what_is_no_schedule_is_refused(self):
        with pytest.raises(TypeError, match=r"^probability_schedule is 0.5; it must be a steadeq schedule, such as"):
            JacobianRegularizer(weight=1.0, probability_schedule=0.5)

    def test_it_goes_together_with_a_closed_loop_on_the_weight(self):
        regularizer = JacobianRegularizer(
            weight=1.0, probability=0.2, schedule=ClosedLoop(target=0.1), probability_schedule=self.ramp
        )
        regularizer.observe(residual=0.3)
        assert regularizer.gamma(0) > 1
        assert regularizer.probability_at(500) == pytest.approx(0.5)


class TestOperatorNormRegularizer:
    def test_the_term_is_weight_times_the_penalty_on_sigma(self):
        M = torch.randn(6, 6)
        eq = Equilibrium.at(lambda z: z @ M.T, torch.ones(2, 6))
        seeded = [torch.Generator().manual_seed(3) for _ in range(2)]
        term = OperatorNormRegularizer(weight=3.0, num_steps=2)(eq, step=0, generator=seeded[0])
        torch.testing.assert_close(term, 3 * operator_norm_penalty(eq, num_steps=2, generator=seeded[1]))

    def test_it_draws_the_same_steps_as_the_other(self):
        kinds = (JacobianRegularizer, OperatorNormRegularizer)
        first, second = ([kind(weight=1.0, probability=0.3, seed=2).tau(s) for s in range(60)] for kind in kinds)
        assert first == second

    def test_descent_on_it_lowers_the_largest_singular_value_and_spares_the_others(self):
        W = torch.diag(torch.tensor([3.0, 1.0, 0.8, 0.5], dtype=torch.float64)).requires_grad_()
        regularizer = OperatorNormRegularizer(weight=1.0, num_steps=20)
        optimizer = torch.optim.SGD([W], lr=0.05)
        eq = Equilibrium.at(lambda z: z @ W.T, torch.zeros(1, 4, dtype=W.dtype))
        for step in range(10):
            optimizer.zero_grad()
            regularizer(eq, step=step).backward()
            optimizer.step()
        # Each step multiplies it by 1 - 2 lr.
        assert operator_norm(eq).value.item() == pytest.approx(3 * 0.9**10, rel=1e-3)
        assert torch.linalg.svdvals(W.detach())[1:].tolist() == pytest.approx([1.0, 0.8, 0.5], rel=1e-4)

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match="num_steps is 0; it must be an integer >= 1"):
            OperatorNormRegularizer(weight=1.0, num_steps=0)
        with pytest.raises(ValueError, match=r"probability is 2; it must be in \[0, 1\]"):
            OperatorNormRegularizer(weight=1.0, probability=2)


class TestForRun:
    eq = Equilibrium.at(halve, torch.ones(2, 4))

    def test_lengths_that_depend_on_the_run_are_filled_in(self):
        regularizer = JacobianRegularizer(weight=1.0, schedule=StopAfter(epoch=3, schedule=Linear(end=2.0)))
        own = regularizer.for_run(num_steps=100, steps_per_epoch=10)
        assert [own.gamma(step) for step in (0, 20, 29, 30)] == pytest.approx([1.0, 1.2, 1.29, 0.0])

    @pytest.mark.parametrize("schedule", [Linear(end=2.0), StopAfter(epoch=3)])
    def test_without_them_the_weight_is_refused(self, schedule):
        regularizer = JacobianRegularizer(weight=1.0, schedule=schedule)
        for ask in (lambda: regularizer(self.eq, step=0), lambda: regularizer.gamma(0)):
            with pytest.raises(ValueError, match=r"^(num_steps|step) is None; .*\.$"):
                ask()

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


class TestClosedLoopThatStops:
    def regularizer(self):
        loop = ClosedLoop(target=0.1, rate=0.1, gain=1.0, max_share=0.5)
        regularizer = JacobianRegularizer(weight=1.0, schedule=StopAfter(epoch=2, schedule=loop))
        return regularizer.for_run(num_steps=100, steps_per_epoch=5)

    def test_it_answers_to_measurements_until_it_stops(self):
        regularizer = self.regularizer()
        regularizer.observe(residual=0.2)
        assert regularizer.gamma(9) == pytest.approx(2**1.1)
        assert regularizer.gamma(10) == 0

    def test_its_guard_holds(self):
        regularizer = self.regularizer()
        for _ in range(50):
            regularizer.observe(residual=10.0)
        eq = Equilibrium.at(halve, torch.ones(2, 4))
        assert regularizer(eq, step=0, task_loss=2.0).item() == pytest.approx(1.0)
        assert regularizer(eq, step=0).item() > 1

    def test_its_state_is_part_of_a_checkpoint(self):
        regularizer, other = self.regularizer(), self.regularizer()
        regularizer.observe(residual=0.3)
        other.load_state_dict(regularizer.state_dict())
        assert other.gamma(0) == regularizer.gamma(0) != 1


class TestSteps:
    def cell(self):
        return Equilibrium.at(nn.Linear(3, 3), torch.zeros(2, 3))

    def test_a_regularizer_that_is_not_told_the_step_counts_its_calls(self):
        told, untold = (JacobianRegularizer(weight=1.0, probability=0.5, seed=3) for _ in range(2))
        eq = self.cell()
        steps = [[bool(told(eq, step=step) > 0) for step in range(20)], [bool(untold(eq) > 0) for _ in range(20)]]
        assert steps[0] == steps[1]
        assert untold.state_dict()["next_step"] == 20

    def test_the_count_is_part_of_a_checkpoint_and_follows_a_step_that_is_told(self):
        first, second = (JacobianRegularizer(weight=1.0, schedule=Linear(end=0.0, num_steps=10)) for _ in range(2))
        eq = self.cell()
        first(eq, step=7)
        second.load_state_dict(first.state_dict())
        expected = first(eq, step=8, generator=torch.Generator().manual_seed(0))
        assert second(eq, generator=torch.Generator().manual_seed(0)) == expected


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_the_term_has_one_dtype_whether_it_is_applied_or_not(dtype, expected):
    cell = nn.Linear(3, 3).to(getattr(torch, dtype))
    eq = Equilibrium.at(cell, torch.ones(2, 3, dtype=getattr(torch, dtype)))
    terms = [JacobianRegularizer(weight=1.0, probability=p, estimator="difference")(eq) for p in (0.0, 1.0)]
    assert [term.dtype for term in terms] == 2 * [getattr(torch, expected)]


@pytest.mark.parametrize(
    "regularizer", [JacobianRegularizer(weight=1.0, estimator="difference"), ResidualRegularizer(weight=1.0)]
)
def test_a_term_without_a_gradient_is_refused(regularizer):
    cell = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match=r"^The graph between z and f\(z\) is cut.*torch\.no_grad"):
        regularizer(Equilibrium.at(torch.no_grad()(cell), torch.ones(2, 3)))
    with torch.no_grad():
        regularizer(Equilibrium.at(cell, torch.ones(2, 3)))
