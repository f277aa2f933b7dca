import pytest
import torch
from small_deq import closed_loop, make_model, samples
from torch.profiler import ProfilerActivity, profile

from steadeq import Equilibrium, JacobianRegularizer, Picard, fixed_point, spectral_radius
from steadeq.integrations import Monitor


def test_the_penalty_is_that_of_the_equilibria_of_the_step():
    model, (x, y) = make_model(), samples()
    regularizer = JacobianRegularizer(weight=0.5)
    monitor = Monitor(regularizer)
    monitor.begin(7)
    loss = (model(x) - y).square().mean()
    torch.manual_seed(3)
    term = monitor.penalty()
    torch.manual_seed(3)
    eq = model[1].solve(model[0](x))
    torch.testing.assert_close(term, regularizer(eq, step=7))
    (loss + term).backward()
    numbers = monitor.end()
    assert numbers["penalty"] == pytest.approx(float(term.detach()))
    assert numbers["gamma"] == 0.5
    assert numbers["converged"] == 1
    assert numbers["forward_residual"] <= 1e-4
    assert 0 < numbers["backward_evals"] <= 40
    # Its statuses are shares of all samples.
    assert numbers["max_evals"] == numbers["non_finite"] == 0


def test_each_forward_pass_of_a_step_is_penalized_once():
    model, (x, _) = make_model(), samples()
    monitor = Monitor(JacobianRegularizer(weight=0.5))
    monitor.begin(0)
    terms = []
    for _ in range(2):
        model(x)
        torch.manual_seed(0)
        terms.append(monitor.penalty().item())
    assert terms[0] == pytest.approx(terms[1], rel=1e-5)
    with pytest.raises(RuntimeError, match="no solve with gradients"):
        monitor.penalty()
    assert monitor.end()["penalty"] == pytest.approx(sum(terms) / 2)


def test_solves_without_gradients_and_between_steps_do_not_count():
    model, (x, _) = make_model(), samples()
    monitor = Monitor()
    model(x)
    monitor.begin(0)
    with torch.no_grad():
        model(x)
    assert monitor.end() == {}
    with pytest.raises(RuntimeError, match="begin"):
        monitor.end()
    with pytest.raises(RuntimeError, match="begin"):
        monitor.penalty()


def test_the_radius_is_estimated_every_so_many_steps_with_the_weights_of_the_step():
    model, (x, _) = make_model(), samples()
    monitor = Monitor(radius_every=2)
    seen = []
    for step in range(4):
        state = torch.random.get_rng_state()
        monitor.begin(step)
        eq = model[1].solve(model[0](x))
        expected = spectral_radius(Equilibrium.at(eq.f, eq.z.detach(), *eq.inputs)).value.mean()
        torch.random.set_rng_state(state)
        with torch.no_grad():
            model[1].cell.weight.mul_(0.5)
        numbers = monitor.end()
        seen.append("spectral_radius" in numbers)
        if seen[-1]:
            assert numbers["spectral_radius"] == pytest.approx(float(expected), rel=0.05)
    assert seen == [True, False, True, False]


def test_a_closed_loop_moves_and_its_state_is_restored():
    model, (x, _) = make_model(), samples()
    monitor = Monitor(closed_loop())
    for step in range(3):
        monitor.begin(step)
        (model(x).mean() + monitor.penalty()).backward()
        monitor.end()
    assert monitor.regularizer.gamma(3) != 0.1
    other = Monitor(closed_loop())
    other.load_state_dict(monitor.state_dict())
    assert other.regularizer.gamma(3) == monitor.regularizer.gamma(3)


def test_statuses_of_failed_solves_are_counted():
    monitor = Monitor()
    monitor.begin(0)
    W = torch.tensor([[0.9]], requires_grad=True)
    fixed_point(lambda z, x: z @ W + x, torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]), solver=Picard(max_evals=3))
    numbers = monitor.end()
    assert (numbers["converged"], numbers["max_evals"]) == (0.5, 0.5)


def test_the_profiler_shows_solve_adjoint_and_penalty_by_name():
    model, (x, _) = make_model(), samples()
    monitor = Monitor(JacobianRegularizer(weight=0.5))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        monitor.begin(0)
        (model(x).mean() + monitor.penalty()).backward()
        monitor.end()
    assert {"steadeq.solve", "steadeq.adjoint", "steadeq.penalty"} <= {event.key for event in profiler.key_averages()}
