"""What a step does, against formulas written out by hand."""

import copy
import math
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from lab.train.runs import LineData, Watcher, assert_same, final_state, metrics_of, tiny_config, train

from steadeq import GMRES, Anderson, Implicit
from steadeq.lab.data import AbstractDataset, Dataset
from steadeq.lab.errors import InputError
from steadeq.models import ToyDEQ
from steadeq.solvers import AbstractSolver
from steadeq.lab.train import AbstractModelConfig, JacobianConfig, OptimizerConfig, Process, Regression, Run, Trainer
from steadeq.lab.train.batches import BatchOrder, SampleBatches
from steadeq.lab.train.evaluation import Evaluator
from steadeq.lab.train.optimizer import build_optimizer, learning_rate


@dataclass(frozen=True, kw_only=True)
class DoubleModel(AbstractModelConfig):
    """A ToyDEQ in float64."""

    hidden: int = 6

    def build(self) -> nn.Module:
        return ToyDEQ(hidden=self.hidden).double()


def double_config(**sections):
    """Return a run in float64 whose solves are exact, without a penalty."""
    exact = {
        "forward": {"max_evals": 100, "tol": 1e-13},
        "backward": {"max_evals": 50, "tol": 1e-13},
        "jacobian": {"weight": 0.0},
    }
    merged = {name: {**exact.get(name, {}), **sections.get(name, {})} for name in {*exact, *sections}}
    config = tiny_config("synthetic", **merged)
    return replace(config, model=DoubleModel(), data=LineData(dtype="float64"))


RARELY = {"eval_every": 1000, "checkpoint_every": 1000}


def make_trainer(config, path, **options):
    return Trainer(config, Run.create(path, config), **options)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class Recorder(Watcher):
    """Keeps what each step recorded, and the weights after it."""

    def __init__(self):
        super().__init__()
        self.weights, self.values = [], []

    def advance(self, title, step, values):
        assert self.trainer is not None
        self.weights.append(weights(self.trainer.model))
        self.values.append(dict(values))


def record(config, path):
    recorder = Recorder()
    recorder.trainer = make_trainer(config, path, display=recorder)
    initial = weights(recorder.trainer.model)
    recorder.trainer.train()
    return initial, recorder


# Gradients


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_parts_of_a_batch_add_up_to_the_whole(parts, tmp_path):
    whole = train(double_config(), tmp_path / "whole")
    split = train(double_config(loop={"accumulate": parts}), tmp_path / "split")
    for name, value in weights(whole.model).items():
        torch.testing.assert_close(weights(split.model)[name], value, rtol=1e-9, atol=1e-9)
    for a, b in zip(metrics_of(tmp_path / "split"), metrics_of(tmp_path / "whole"), strict=True):
        for name in {"loss", "mse", "grad_norm"} & b.keys():
            assert a[name] == pytest.approx(b[name], rel=1e-7, abs=1e-12), name


@pytest.mark.parametrize("method", ["sgd", "adam"])
def test_a_run_equals_a_loop_written_by_hand(method, tmp_path):
    config = double_config(
        optimizer={"method": method, "learning_rate": 0.05, "weight_decay": 1e-2, "max_grad_norm": 0.5},
        loop={"ema_decay": 0.8},
    )
    initial, recorder = record(config, tmp_path / "run")
    trainer = recorder.trainer

    model = ToyDEQ(hidden=6).double()
    model.load_state_dict(initial)
    average = copy.deepcopy(model)
    if method == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=1e-2, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0, weight_decay=1e-2)
    solver, adjoint = Anderson(max_evals=100, tol=1e-13), Implicit(GMRES(max_evals=50, tol=1e-13, memory=50))
    for step in range(12):
        x, y = trainer.batches.get(step, 0)
        output, _ = model(x, solver=solver, adjoint=adjoint)
        optimizer.zero_grad()
        (output - y).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert recorder.values[step]["grad_norm"] == pytest.approx(float(norm), rel=1e-9)
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / 12)) / 2
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.copy_(0.8 * a + 0.2 * p)
        for name, value in weights(model).items():
            torch.testing.assert_close(recorder.weights[step][name], value, rtol=1e-9, atol=1e-10)
    assert trainer.average is not None
    for name, value in weights(average).items():
        torch.testing.assert_close(weights(trainer.average)[name], value, rtol=1e-9, atol=1e-10)
    assert max(v["grad_norm"] for v in recorder.values) > 0.5, "the clipping was not tested"


def test_evaluations_use_the_averaged_weights(tmp_path):
    trainer = train(double_config(loop={"ema_decay": 0.99}, optimizer={"learning_rate": 0.1}), tmp_path / "run")
    assert trainer.average is not None
    dataset, solver = trainer.splits.validation, Anderson(max_evals=100, tol=1e-13)
    measured = {
        name: trainer.evaluator.measure(model, dataset, solver)["mse"]
        for name, model in (("average", trainer.average), ("latest", trainer.model))
    }
    assert trainer.evaluation["mse"] == pytest.approx(measured["average"], rel=1e-9)
    assert measured["average"] != pytest.approx(measured["latest"], rel=1e-3)


def test_the_first_phase_is_backpropagation_through_the_loop(tmp_path):
    config = double_config(
        warmup={"num_steps": 3, "depth": 5},
        optimizer={"method": "sgd", "learning_rate": 0.1, "momentum": 0.0, "schedule": "constant"},
        jacobian={"weight": 3.0, "probability": 1.0},
    )
    initial, recorder = record(config, tmp_path / "run")
    model = ToyDEQ(hidden=6).double()
    model.load_state_dict(initial)
    for step in range(3):
        x, y = recorder.trainer.batches.get(step, 0)
        z = torch.zeros_like(x)
        for _ in range(5):
            z = model.layer.cell(z, x)
        gradients = torch.autograd.grad((z - y).square().mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        for name, value in weights(model).items():
            torch.testing.assert_close(recorder.weights[step][name], value, rtol=1e-10, atol=1e-12)
    for step, values in enumerate(recorder.values):
        is_unrolled = step < 3
        assert ("backward_evals" in values) != is_unrolled
        assert ("jacobian_norm" in values) != is_unrolled
        assert (values["forward_evals"] == 5) or not is_unrolled
        assert values["jacobian_weight"] == (0.0 if is_unrolled else 3.0)


def test_the_penalty_of_the_first_phase_has_its_own_weight(tmp_path):
    config = double_config(warmup={"num_steps": 4, "depth": 3, "jacobian_weight": 0.7}, jacobian={"probability": 1.0})
    _, recorder = record(config, tmp_path / "run")
    for step, values in enumerate(recorder.values):
        assert values["jacobian_weight"] == (0.7 if step < 4 else 0.0)
        assert (values["penalty"] > 0) == (step < 4)


# Schedules


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_learning_rates_follow_the_closed_form(schedule, tmp_path):
    config = tiny_config(
        optimizer={"schedule": schedule, "learning_rate": 0.3, "warmup_steps": 4, "min_learning_rate": 0.1}
    )
    _, recorder = record(config, tmp_path / "run")
    rates = [values["learning_rate"] for values in recorder.values]
    for step, rate in enumerate(rates):
        if step < 4:
            expected = 0.3 * (step + 1) / 4
        elif schedule == "constant":
            expected = 0.3
        else:
            expected = 0.1 + 0.2 * 0.5 * (1 + math.cos(math.pi * step / 12))
        assert rate == pytest.approx(expected, rel=1e-12)


def test_a_cosine_falls_from_the_highest_to_the_lowest_rate():
    config = OptimizerConfig(learning_rate=1.0, min_learning_rate=0.2)
    rates = [learning_rate(config, step, 1000) for step in range(1001)]
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(0.2)
    assert rates == sorted(rates, reverse=True)


def test_a_warm_up_does_not_jump(tmp_path):
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=100)
    rates = [learning_rate(config, step, 10_000) for step in range(300)]
    assert max(abs(b - a) for a, b in pairwise(rates)) < 0.011


@pytest.mark.parametrize(
    ("method", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_optimizers_get_what_the_config_says(method, kind):
    config = OptimizerConfig(method=method, weight_decay=0.1, betas=(0.8, 0.9), momentum=0.7, nesterov=True)
    optimizer = build_optimizer(config, [nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert group["weight_decay"] == 0.1
    if method == "sgd":
        assert (group["momentum"], group["nesterov"]) == (0.7, True)
    else:
        assert group["betas"] == (0.8, 0.9)


@pytest.mark.parametrize(
    ("jacobian", "expected"),
    [
        ({"schedule": "constant"}, [4.0] * 12),
        ({"schedule": "linear", "end": 1.0, "begin": 2}, [4.0, 4.0, *(4 - 3 * k / 10 for k in range(10))]),
        ({"schedule": "increments", "increment": 0.5, "every": 5, "begin": 1}, [4.0] * 6 + [4.5] * 5 + [5.0]),
        ({"schedule": "constant", "stop_step": 7}, [4.0] * 7 + [0.0] * 5),
    ],
    ids=["constant", "linear", "increments", "stop"],
)
def test_the_weight_of_the_penalty_follows_its_schedule(jacobian, expected, tmp_path):
    _, recorder = record(tiny_config(jacobian={"probability": 1.0, **jacobian}), tmp_path / "run")
    assert [values["jacobian_weight"] for values in recorder.values] == pytest.approx(expected)
    for values, weight in zip(recorder.values, expected, strict=True):
        assert ("jacobian_norm" in values) == (weight > 0)


# The penalty


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_the_penalty_is_applied_on_the_steps_that_tau_chooses(probability, tmp_path):
    config = tiny_config(jacobian={"probability": probability}, loop={"num_steps": 200, "batch_size": 2}, log=RARELY)
    _, recorder = record(config, tmp_path / "run")
    applied = [values["penalty"] > 0 for values in recorder.values]
    assert applied == [recorder.trainer.regularizer.tau(step) for step in range(200)]
    assert applied == ["jacobian_norm" in values for values in recorder.values]
    # Within four standard deviations.
    assert abs(sum(applied) / 200 - probability) <= 4 * math.sqrt(probability * (1 - probability) / 200)
    for values in recorder.values:
        assert values["loss"] == pytest.approx(values["task_loss"] + values["penalty"], rel=1e-5)
    records = [record for record in metrics_of(tmp_path / "run") if record["event"] == "train"]
    assert ["jacobian_norm" in record for record in records] == applied


def test_the_recorded_norm_is_that_of_the_jacobian(tmp_path):
    # The state is a scalar, so that any probe of ±1 gives the square of the derivative.
    config = tiny_config(jacobian={"probability": 1.0}, forward={"max_evals": 50, "tol": 1e-7}, loop={"num_steps": 1})
    initial, recorder = record(config, tmp_path / "run")
    model = ToyDEQ()
    model.load_state_dict(initial)
    x, _ = recorder.trainer.batches.get(0, 0)
    with torch.no_grad():
        z, _ = model(x, solver=Anderson(max_evals=50, tol=1e-7))
        cell = model.layer.cell
        active = (z @ cell.W1.T + x @ cell.U.T + cell.b > 0).float()
        derivative = active @ (cell.W1 * cell.W2)
    assert recorder.values[0]["jacobian_norm"] == pytest.approx(float(derivative.square().mean()), rel=1e-4)


def test_a_closed_loop_records_the_weight_that_was_applied(tmp_path):
    config = tiny_config(
        jacobian={"schedule": "closed-loop", "weight": 0.2, "target": 1e-3, "probability": 1.0},
        forward={"max_evals": 3},
    )
    _, recorder = record(config, tmp_path / "run")
    regularizer = config.jacobian.build(12, 4, config.loop.seed)
    applied = []
    for step, values in enumerate(recorder.values):
        applied.append(regularizer.gamma(step))
        regularizer.observe(residual=values["forward_residual"])
    assert len(set(applied)) > 1
    assert [values["jacobian_weight"] for values in recorder.values] == applied


def test_a_closed_loop_records_the_norm_itself_even_where_its_guard_holds_the_penalty_back(tmp_path):
    config = tiny_config(
        jacobian={"schedule": "closed-loop", "weight": 50.0, "target": 1e-9, "probability": 1.0},
        forward={"max_evals": 50, "tol": 1e-7},
        loop={"num_steps": 1},
    )
    constant = tiny_config(
        jacobian={"weight": 50.0, "probability": 1.0}, forward={"max_evals": 50, "tol": 1e-7}, loop={"num_steps": 1}
    )
    _, guarded = record(config, tmp_path / "guarded")
    _, plain = record(constant, tmp_path / "plain")
    assert guarded.values[0]["penalty"] < plain.values[0]["penalty"]
    assert guarded.values[0]["jacobian_norm"] == pytest.approx(plain.values[0]["jacobian_norm"], rel=1e-6)


# Budgets


def budgets(config, path) -> list[int]:
    used: list[int] = []
    trainer = make_trainer(config, path)
    plain = trainer.model.solve

    def watch(x, *, solver: AbstractSolver, **options):
        if torch.is_grad_enabled():
            used.append(solver.max_evals)
        return plain(x, solver=solver, **options)

    trainer.model.solve = watch
    trainer.train()
    return used


def test_random_budgets_stay_in_their_range_reach_its_ends_and_repeat(tmp_path):
    config = tiny_config(
        forward={"max_evals": 5, "jitter": (-2, 3), "tol": 0.0}, loop={"num_steps": 60, "batch_size": 2}, log=RARELY
    )
    first = budgets(config, tmp_path / "a")
    assert len(first) == 60
    assert set(first) == {3, 4, 5, 6, 7, 8}
    assert budgets(config, tmp_path / "b") == first
    other = replace(config, loop=replace(config.loop, seed=1))
    assert budgets(other, tmp_path / "c") != first


def test_budgets_can_be_random_on_penalized_steps_only(tmp_path):
    jitter = {"max_evals": 5, "jitter": (1, 2), "jitter_when": "penalized"}
    config = tiny_config(forward=jitter, jacobian={"probability": 0.5, "stop_step": 20}, loop={"num_steps": 40})
    regularizer = config.jacobian.build(40, 4, 0)
    expected = [regularizer.tau(step) and step < 20 for step in range(40)]
    assert any(expected)
    assert [budget > 5 for budget in budgets(config, tmp_path / "a")] == expected


def test_evaluation_may_have_a_budget_of_its_own(tmp_path):
    config = tiny_config(forward={"max_evals": 2, "eval_max_evals": 9, "tol": 0.0}, loop={"num_steps": 3})
    train(config, tmp_path / "run")
    records = metrics_of(tmp_path / "run")
    assert [r["forward_evals"] for r in records if r["event"] == "train"] == [2, 2, 2]
    # Samples that cannot get any better stop before their budget is spent.
    assert 2 < records[-1]["forward_evals"] <= 9


# Data and evaluation


def test_every_epoch_shows_every_sample_once_in_a_new_order(tmp_path):
    trainer = make_trainer(replace(tiny_config("synthetic"), data=LineData(num_train=50)), tmp_path / "run")
    assert trainer.batches.steps_per_epoch == 3
    epochs = [torch.cat([trainer.batches.get(3 * e + k, 0)[0] for k in range(3)]).flatten() for e in range(3)]
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 48
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    assert torch.equal(trainer.batches.get(1, 0)[0].flatten(), epochs[0][16:32]), "going back gives the same"


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_means_are_over_samples_whatever_the_size_of_the_last_batch(batch_size):
    data = LineData(num_validation=7, dtype="float64").load().validation
    model = ToyDEQ(hidden=5).double()
    solver = Anderson(max_evals=60, tol=1e-12)
    evaluator = Evaluator(task=Regression(), process=Process(), batch_size=batch_size)
    measured = evaluator.measure(model, data, solver)
    with torch.no_grad():
        output, solution = model(data.inputs, solver=solver)
    assert measured["mse"] == pytest.approx(float((output - data.targets).square().mean()), rel=1e-9)
    assert measured["forward_evals"] == pytest.approx(float(solution.num_evals.double().mean()))
    assert measured["converged"] == 1.0
    assert model.training


def test_measuring_leaves_the_mode_of_a_model_alone():
    data = LineData().load().validation
    model = ToyDEQ(hidden=5).eval()
    evaluator = Evaluator(task=Regression(), process=Process())
    evaluator.measure(model, data, Anderson(max_evals=6))
    evaluator.measure_spectrum(model, data, Anderson(max_evals=6), num_samples=3, max_products=5, seed=0)
    assert not model.training


def test_the_spectrum_of_a_scalar_state_is_its_derivative():
    x = torch.linspace(-1, 1, 6)[:, None]
    data = Dataset(inputs=x, targets=x)
    model, solver = ToyDEQ(hidden=8), Anderson(max_evals=60, tol=1e-7)
    measured = Evaluator(task=Regression(), process=Process()).measure_spectrum(
        model, data, solver, num_samples=4, max_products=8, seed=0
    )
    with torch.no_grad():
        z, _ = model(x[:4], solver=solver)
        cell = model.layer.cell
        slopes = ((z @ cell.W1.T + x[:4] @ cell.U.T + cell.b > 0).float() @ (cell.W1 * cell.W2)).abs()
    assert measured["spectral_radius"] == pytest.approx(float(slopes.mean()), rel=1e-3)
    assert measured["spectral_radius_max"] == pytest.approx(float(slopes.max()), rel=1e-3)
    assert measured["jacobian_norm"] == pytest.approx(float(slopes.square().mean()), rel=1e-3)
    assert measured["spectral_radius_error"] < 1e-3
    assert measured["spectral_radius_unknown"] == 0


# Precision, seeds, compilation


def test_runs_in_bfloat16_learn_and_keep_float32_weights(tmp_path):
    # Large batches at few steps: the loss must fall.
    config = tiny_config(
        "digits-jr", loop={"precision": "bfloat16", "num_steps": 12, "batch_size": 32}, log={"eval_every": 12}
    )
    trainer = train(config, tmp_path / "run")
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
    records = [r for r in metrics_of(tmp_path / "run") if r["event"] == "train"]
    assert len(records) == 12
    assert records[-1]["task_loss"] < records[0]["task_loss"]
    reference = train(replace(config, loop=replace(config.loop, precision="float32")), tmp_path / "reference")
    first, second = (metrics_of(tmp_path / name)[0]["task_loss"] for name in ("run", "reference"))
    assert first == pytest.approx(second, rel=0.05)
    assert first != second, "autocast did nothing"
    assert reference.is_finished


def test_the_seed_decides_all_and_the_global_one_nothing(tmp_path):
    config = tiny_config()
    torch.manual_seed(1)
    train(config, tmp_path / "a")
    torch.manual_seed(2)
    train(config, tmp_path / "b")
    train(replace(config, loop=replace(config.loop, seed=1)), tmp_path / "c")
    assert_same(final_state(tmp_path / "a"), final_state(tmp_path / "b"))
    assert metrics_of(tmp_path / "a")[0]["loss"] != metrics_of(tmp_path / "c")[0]["loss"]


def test_training_works_with_every_solver_and_every_gradient(tmp_path):
    for index, (forward, backward) in enumerate(
        [
            ({"solver": "broyden"}, {"adjoint": "shine"}),
            ({"solver": "picard"}, {"adjoint": "one-step"}),
            ({"solver": "newton-krylov"}, {"solver": "broyden"}),
            ({"solver": "anderson"}, {"solver": "anderson"}),
            ({"solver": "anderson"}, {"solver": "picard"}),
            ({"solver": "picard"}, {"adjoint": "unrolled"}),
        ]
    ):
        path = tmp_path / str(index)
        train(tiny_config(forward=forward, backward=backward, loop={"num_steps": 3}), path)
        records = metrics_of(path)
        assert [r["event"] for r in records] == ["train"] * 3 + ["evaluation"]
        assert all(math.isfinite(r["loss"]) for r in records)


def test_windows_average_over_their_steps(tmp_path):
    train(tiny_config(), tmp_path / "single")
    train(tiny_config(log={"every": 5}), tmp_path / "window")
    single = [r for r in metrics_of(tmp_path / "single") if r["event"] == "train"]
    window = [r for r in metrics_of(tmp_path / "window") if r["event"] == "train"]
    assert [r["step"] for r in window] == [5, 10, 12]
    for record, steps in zip(window, (single[:5], single[5:10], single[10:]), strict=True):
        assert record["loss"] == pytest.approx(sum(s["loss"] for s in steps) / len(steps))
        norms = [s["jacobian_norm"] for s in steps if "jacobian_norm" in s]
        assert ("jacobian_norm" in record) == bool(norms)
        if norms:
            assert record["jacobian_norm"] == pytest.approx(sum(norms) / len(norms))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_cell_gives_the_same_run(tmp_path):
    train(tiny_config(loop={"num_steps": 3}), tmp_path / "plain")
    train(tiny_config(loop={"num_steps": 3, "compile": True}), tmp_path / "compiled")
    for a, b in zip(metrics_of(tmp_path / "compiled"), metrics_of(tmp_path / "plain"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


# Batches


class ReadData(AbstractDataset):
    """As if read from disk: not in memory."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 12

    def batch(self, indices, generator=None):
        noise = 0 if generator is None else torch.rand((), generator=generator)
        self.asked.append(indices.tolist())
        return indices.float()[:, None] + noise, indices


@pytest.mark.parametrize("parts", [range(1), range(2), range(1, 2)])
def test_what_is_read_ahead_is_what_would_be_read(parts):
    order = BatchOrder(12, batch_size=4, num_parts=2, seed=0)
    ahead = SampleBatches(ReadData(), order, parts=parts, seed=0)
    for step in range(7):
        for part in parts:
            # A fresh one has nothing read ahead.
            plain = SampleBatches(ReadData(), order, parts=parts, seed=0)
            for a, b in zip(ahead.get(step, part), plain.get(step, part), strict=True):
                assert torch.equal(a, b)
            plain.close()
    ahead.close()


def test_each_part_is_read_once():
    data = ReadData()
    batches = SampleBatches(data, BatchOrder(12, batch_size=4, num_parts=2, seed=0), parts=range(2), seed=0)
    for step in range(3):
        for part in range(2):
            batches.get(step, part)
    batches.close()
    assert sorted(index for part in data.asked[:6] for index in part) == list(range(12))
    assert len(data.asked) <= 7


def test_an_error_while_reading_ahead_is_raised_where_the_batch_is_needed():
    class Damaged(ReadData):
        def batch(self, indices, generator=None):
            if len(self.asked) == 1:
                raise InputError("image.png is damaged.")
            return super().batch(indices, generator)

    batches = SampleBatches(Damaged(), BatchOrder(12, batch_size=4, num_parts=1, seed=0), parts=range(1), seed=0)
    batches.get(0, 0)
    with pytest.raises(InputError, match=r"image\.png"):
        batches.get(1, 0)
    batches.close()


def test_the_penalty_can_stop_with_an_epoch():
    config = JacobianConfig(weight=2.0, stop_epoch=3, stop_step=100)
    regularizer = config.build(num_steps=1000, steps_per_epoch=10, seed=0)
    assert [regularizer.gamma(step) for step in (29, 30, 100)] == [2.0, 0.0, 0.0]
