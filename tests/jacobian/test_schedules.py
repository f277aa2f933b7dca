import math

import pytest
import torch

from steadeq import ClosedLoop, Constant, Equilibrium, Increments, JacobianRegularizer, Linear, StopAfter


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


def test_closed_loop_bounds_each_correction_and_gamma_itself():
    loop = ClosedLoop(target=0.1, rate=0.5, gain=1.0, minimum=0.5, maximum=100.0)
    for unbounded in (1e9, math.nan, math.inf):
        assert loop.correct(1.0, unbounded) == pytest.approx((math.e, math.e**3))
    assert loop.correct(90.0, 1e9) == (100.0, 100.0)
    assert loop.correct(0.6, 0.0) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ClosedLoop, {"target": 0.0}, "target is 0.0; it must be a positive number"),
        (ClosedLoop, {"minimum": 2.0, "maximum": 1.0}, "maximum is 1.0; it must be at least minimum"),
        (ClosedLoop, {"observed": "loss"}, "observed is 'loss'; it must be one of 'residual', 'spectral_radius', 'ev"),
        (Linear, {"end": -1.0, "num_steps": 3}, "end is -1.0"),
        (Linear, {"end": 1.0, "num_steps": 0}, "num_steps is 0; it must be an integer >= 1"),
        (Linear, {"end": 1.0, "begin": -1}, "begin is -1; it must be an integer >= 0"),
        (Increments, {"increment": 0.1, "every": 0}, "every is 0; it must be an integer >= 1"),
        (Increments, {"increment": math.inf, "every": 1}, "increment is inf; it must be a finite number"),
        (StopAfter, {}, "step is None and epoch is None; one of them must be given"),
        (StopAfter, {"step": 1, "epoch": 1}, "step is 1 and epoch is 1; one of them must be given"),
        (StopAfter, {"epoch": -1}, "epoch is -1; it must be an integer >= 0"),
        (StopAfter, {"step": 1.5}, "step is 1.5; it must be an integer >= 0"),
    ],
)
def test_bad_schedules_are_named(kind, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Linear(end=2.0), r"^num_steps is None; .*the length of the ramp\.$"),
        (StopAfter(epoch=3), r"^step is None; .*the step at which the penalty stops\.$"),
        (StopAfter(step=3, schedule=Linear(end=2.0)), r"^num_steps is None"),
    ],
)
def test_a_schedule_without_its_lengths_is_refused(schedule, message):
    eq = Equilibrium.at(torch.cos, torch.ones(1, 2))
    regularizer = JacobianRegularizer(weight=1.0, schedule=schedule)
    for ask in (lambda: schedule.weight(1.0, 0), lambda: regularizer.gamma(0), lambda: regularizer(eq, step=0)):
        with pytest.raises(ValueError, match=message):
            ask()


@pytest.mark.parametrize(
    ("schedule", "filled_in"),
    [
        (Linear(end=2.0), Linear(end=2.0, num_steps=100)),
        (Linear(end=2.0, begin=40), Linear(end=2.0, num_steps=60, begin=40)),
        (Linear(end=2.0, begin=100), Linear(end=2.0, num_steps=1, begin=100)),
        (Linear(end=2.0, num_steps=7), Linear(end=2.0, num_steps=7)),
        (StopAfter(epoch=3), StopAfter(step=30)),
        (StopAfter(epoch=0), StopAfter(step=0)),
        (StopAfter(step=3), StopAfter(step=3)),
        (StopAfter(epoch=3, schedule=Linear(end=2.0)), StopAfter(step=30, schedule=Linear(end=2.0, num_steps=100))),
        (Constant(), Constant()),
        (Increments(increment=0.1, every=3), Increments(increment=0.1, every=3)),
        (ClosedLoop(target=0.1), ClosedLoop(target=0.1)),
    ],
    ids=repr,
)
def test_a_run_fills_in_the_lengths_that_depend_on_it(schedule, filled_in):
    assert schedule.for_run(100, 10) == filled_in


def test_a_closed_loop_inside_of_another_schedule_keeps_its_state():
    loop = ClosedLoop(target=0.1)
    outer = StopAfter(step=5, schedule=loop)
    assert outer.start(2.0) == loop.start(2.0)
    state = outer.observe(outer.start(2.0), {"residual": 0.3})
    assert state == loop.observe(loop.start(2.0), {"residual": 0.3})
    assert outer.weight(2.0, 4, state) == loop.weight(2.0, 4, state)
    assert outer.weight(2.0, 5, state) == 0
