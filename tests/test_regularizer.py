import math
from itertools import pairwise

import pytest
import torch

from steadeq import (
    DEQ,
    Anderson,
    ClosedLoop,
    Increments,
    JacobianRegularizer,
    Linear,
    StopAfter,
    jacobian_penalty,
)


def halve(z):
    return 0.5 * z


def test_the_term_is_weight_times_penalty_on_applied_steps():
    term = JacobianRegularizer(weight=3.0)(halve, torch.ones(2, 4), step=0)
    assert term.item() == pytest.approx(3 * 0.25)


def test_tau_follows_the_probability_and_skips_the_cell_otherwise():
    calls = 0

    def f(z):
        nonlocal calls
        calls += 1
        return 0.5 * z

    regularizer = JacobianRegularizer(weight=1.0, probability=0.3)
    applied = [regularizer(f, torch.ones(1, 2), step=step).item() > 0 for step in range(2000)]
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


@pytest.mark.parametrize(("probability", "applied"), [(0.0, 0), (1.0, 100)])
def test_probability_zero_never_applies_and_one_always(probability, applied):
    regularizer = JacobianRegularizer(weight=1.0, probability=probability)
    assert sum(regularizer.tau(step) for step in range(100)) == applied


@pytest.mark.parametrize(
    ("schedule", "weights"),
    [
        (Linear(end=2.0, num_steps=10), {0: 1.0, 5: 1.5, 10: 2.0, 99: 2.0}),
        (Linear(end=0.0, num_steps=4, begin=4), {0: 1.0, 4: 1.0, 6: 0.5, 8: 0.0}),
        (Increments(increment=0.1, every=10, begin=20), {0: 1.0, 29: 1.0, 30: 1.1, 45: 1.2}),
        (Increments(increment=1.0, every=1, maximum=3.0), {1: 2.0, 2: 3.0, 50: 3.0}),
        (StopAfter(step=5, schedule=Linear(end=2.0, num_steps=10)), {0: 1.0, 4: 1.4, 5: 0.0}),
    ],
)
def test_schedules_move_the_weight(schedule, weights):
    regularizer = JacobianRegularizer(weight=1.0, schedule=schedule)
    assert {step: regularizer.gamma(step) for step in weights} == pytest.approx(weights)


def test_a_stopped_penalty_costs_nothing():
    def f(z):
        raise AssertionError("evaluated")

    regularizer = JacobianRegularizer(weight=1.0, schedule=StopAfter(step=1))
    assert regularizer(f, torch.ones(1, 2), step=1).item() == 0


def test_closed_loop_raises_gamma_above_the_target_and_lowers_it_below():
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.1, rate=0.1, gain=1.0))
    regularizer.observe(residual=0.2)
    assert regularizer.gamma(0) == pytest.approx(2**1.1)
    regularizer.observe(residual=torch.tensor(0.1, dtype=torch.float64))
    assert regularizer.gamma(0) == pytest.approx(2**0.1)
    regularizer.observe(residual=0.05)
    assert regularizer.gamma(0) == pytest.approx(0.5)


def test_closed_loop_bounds_each_correction_and_gamma_itself():
    loop = ClosedLoop(target=0.1, rate=0.5, gain=1.0, minimum=0.5, maximum=100.0)
    for unbounded in (1e9, math.nan, math.inf):
        assert loop.correct(1.0, unbounded) == pytest.approx((math.e, math.e**3))
    assert loop.correct(90.0, 1e9) == (100.0, 100.0)
    assert loop.correct(0.6, 0.0) == (0.5, 0.5)


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
    regularizer = JacobianRegularizer(weight=1.0, schedule=ClosedLoop(target=0.9, measure="spectral_radius"))
    regularizer.observe(residual=5.0)
    assert regularizer.gamma(0) == 1.0
    regularizer.observe(spectral_radius=1.8)
    assert regularizer.gamma(0) > 1.0


def test_the_guard_keeps_the_term_below_its_share_of_the_task_loss():
    regularizer = JacobianRegularizer(weight=50.0, schedule=ClosedLoop(target=0.1, max_share=0.5))
    W = torch.eye(4).requires_grad_()
    z = torch.ones(2, 4)
    term = regularizer(lambda z: z @ W.T, z, step=0, task_loss=torch.tensor(2.0))
    assert term.item() == pytest.approx(1.0)
    term.backward()
    assert W.grad.abs().sum() > 0
    free = regularizer(lambda z: z @ W.T, z, step=0, task_loss=1e6)
    assert free.item() == pytest.approx(50.0)


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
        z, solution = layer(torch.zeros(64, 16), x)
        loss = (head(z) - y).square().mean()
        if regularizer is not None:
            regularizer.observe(residual=solution.residual.mean())
            loss = loss + regularizer(layer.cell, z, x, step=step, task_loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        residuals.append(solution.residual.mean().item())
    penalty = jacobian_penalty(layer.cell, z, x, num_probes=20).item()
    return sum(residuals[-100:]) / 100, penalty


def test_closed_loop_holds_the_residual_of_a_real_layer_that_drifts_away_without_it():
    free, free_penalty = fit(None)
    held, held_penalty = fit(ClosedLoop(target=0.02, max_share=10.0))
    assert free > 0.2
    assert held == pytest.approx(0.02, rel=0.3)
    assert held_penalty < free_penalty


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": -1.0}, "weight is -1.0; it must be a finite number >= 0"),
        ({"weight": 1.0, "probability": 1.5}, r"probability is 1.5; it must be in \[0, 1\]"),
        ({"weight": 1.0, "num_probes": 0}, "num_probes is 0; it must be an integer >= 1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        JacobianRegularizer(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClosedLoop(target=0.0), "target is 0.0; it must be > 0"),
        (lambda: ClosedLoop(target=1.0, minimum=2.0, maximum=1.0), "maximum is 1.0; it must be at least minimum"),
        (lambda: ClosedLoop(target=1.0, measure="loss"), "measure is 'loss'; it must be 'residual' or"),
        (lambda: Linear(end=-1.0, num_steps=3), "end is -1.0"),
        (lambda: Increments(increment=0.1, every=0), "every is 0; it must be an integer >= 1"),
    ],
)
def test_bad_schedules_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
