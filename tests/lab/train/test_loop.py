"""What a step does, against formulas written out by hand."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from lab.train.runs import (
    LineData,
    assert_same,
    events_of,
    final_state,
    make_trainer,
    metrics_of,
    record,
    tiny_config,
    train,
    weights_of,
)
from torch import nn

from steadeq import (
    GMRES,
    AbstractSolver,
    Anderson,
    Broyden,
    ClosedLoop,
    Constant,
    Implicit,
    Increments,
    Linear,
    NewtonKrylov,
    Phantom,
    Picard,
    Shine,
    StopAfter,
)
from steadeq.lab.config import RandomBudget
from steadeq.lab.data import AbstractDataConfig, InMemory
from steadeq.lab.errors import InputError
from steadeq.lab.optimizers import SGD, Adam, AdamW
from steadeq.lab.tasks import Regression
from steadeq.lab.train import Process
from steadeq.lab.train.evaluation import Evaluator
from steadeq.models import AbstractModelConfig, ToyDEQ


@dataclass(frozen=True, kw_only=True)
class DoubleModel(AbstractModelConfig):
    """A ToyDEQ in float64."""

    hidden: int = 6

    def build(self) -> nn.Module:
        return ToyDEQ(hidden=self.hidden).double()


def double_config(**sections):
    """Return a run in float64 whose solves are exact, without a penalty."""
    exact = {
        "model": DoubleModel(),
        "data": LineData(dtype="float64"),
        "solver": {"max_evals": 100, "tol": 1e-13},
        "adjoint": Implicit(GMRES(max_evals=50, tol=1e-13)),
        "regularizer": {"weight": 0.0},
    }
    return tiny_config("synthetic", **{**exact, **sections})


RARELY = {"eval_every": 1000, "checkpoint_every": 1000}


# Gradients


# With 53 samples the last batch of an epoch has five, which 4 does not divide.
@pytest.mark.parametrize(("parts", "num_train"), [(16, 48), (4, 53)])
def test_parts_of_a_batch_add_up_to_the_whole(parts, num_train, tmp_path):
    config = replace(double_config(), data=LineData(num_train=num_train, dtype="float64"))
    whole = train(config, tmp_path / "whole")
    split = train(replace(config, loop=replace(config.loop, accumulate=parts)), tmp_path / "split")
    for name, value in weights_of(whole.model).items():
        torch.testing.assert_close(weights_of(split.model)[name], value, rtol=1e-9, atol=1e-9)
    for a, b in zip(metrics_of(tmp_path / "split"), metrics_of(tmp_path / "whole"), strict=True):
        for name in {"loss", "mse", "grad_norm"} & b.keys():
            assert a[name] == pytest.approx(b[name], rel=1e-7, abs=1e-12), name


@pytest.mark.parametrize(
    ("method", "fields"),
    [(SGD, {"momentum": 0.7, "nesterov": True}), (Adam, {"betas": (0.8, 0.95)}), (AdamW, {"betas": (0.8, 0.95)})],
)
def test_a_run_equals_a_loop_written_by_hand(method, fields, tmp_path):
    options = {"weight_decay": 1e-2, **fields}
    config = double_config(optimizer=method(learning_rate=0.05, max_grad_norm=0.5, **options), loop={"ema_decay": 0.8})
    initial, recorder = record(config, tmp_path / "run")
    trainer = recorder.trainer

    model = ToyDEQ(hidden=6).double()
    model.load_state_dict(initial)
    average = copy.deepcopy(model)
    optimizer = getattr(torch.optim, method.__name__)(model.parameters(), lr=1.0, **options)
    solver, adjoint = Anderson(max_evals=100, tol=1e-13), Implicit(GMRES(max_evals=50, tol=1e-13))
    for step in range(12):
        x, y = trainer.reader.get(step, 0)
        output = model(x, solver=solver, adjoint=adjoint)
        optimizer.zero_grad()
        (output - y).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert recorder.values[step]["grad_norm"] == pytest.approx(float(norm), rel=1e-9)
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / 12)) / 2
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.copy_(0.8 * a + 0.2 * p)
        for name, value in weights_of(model).items():
            torch.testing.assert_close(recorder.weights[step][name], value, rtol=1e-9, atol=1e-10)
    assert trainer.average is not None
    for name, value in weights_of(average).items():
        torch.testing.assert_close(weights_of(trainer.average)[name], value, rtol=1e-9, atol=1e-10)
    assert max(v["grad_norm"] for v in recorder.values) > 0.5, "the clipping was not tested"


def test_evaluations_use_the_averaged_weights(tmp_path):
    trainer = train(double_config(loop={"ema_decay": 0.99}, optimizer={"learning_rate": 0.1}), tmp_path / "run")
    assert trainer.average is not None
    dataset, solver = trainer.splits.validation, Anderson(max_evals=100, tol=1e-13)
    measured = {
        name: trainer.evaluator.measure(model, dataset, solver).score
        for name, model in (("average", trainer.average), ("latest", trainer.model))
    }
    assert trainer.evaluation["mse"] == pytest.approx(measured["average"], rel=1e-9)
    assert measured["average"] != pytest.approx(measured["latest"], rel=1e-3)


def test_the_first_phase_is_backpropagation_through_the_loop(tmp_path):
    config = double_config(
        warmup={"num_steps": 3, "depth": 5},
        optimizer=SGD(learning_rate=0.1, momentum=0.0, schedule="constant"),
        regularizer={"weight": 3.0, "probability": 1.0},
    )
    initial, recorder = record(config, tmp_path / "run")
    model = ToyDEQ(hidden=6).double()
    model.load_state_dict(initial)
    for step in range(3):
        x, y = recorder.trainer.reader.get(step, 0)
        z = torch.zeros_like(x)
        for _ in range(5):
            z = model.layer.cell(z, x)
        gradients = torch.autograd.grad((z - y).square().mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        for name, value in weights_of(model).items():
            torch.testing.assert_close(recorder.weights[step][name], value, rtol=1e-10, atol=1e-12)
    for step, values in enumerate(recorder.values):
        is_unrolled = step < 3
        assert ("backward_evals" in values) != is_unrolled
        assert ("jacobian_norm" in values) != is_unrolled
        assert (values["forward_evals"] == 5) or not is_unrolled
        assert values["regularizer_weight"] == (0.0 if is_unrolled else 3.0)


def test_the_penalty_of_the_first_phase_has_its_own_weight(tmp_path):
    warmup = {"num_steps": 4, "depth": 3, "regularizer_weight": 0.7}
    _, recorder = record(
        double_config(warmup=warmup, regularizer={"weight": 0.0, "probability": 1.0}), tmp_path / "run"
    )
    found = [(values["regularizer_weight"], values["penalty"] > 0) for values in recorder.values]
    assert found == [(0.7, True)] * 4 + [(0.0, False)] * 8


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


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(), [4.0] * 12),
        (Linear(end=1.0, begin=2), [4.0, 4.0, *(4 - 3 * k / 10 for k in range(10))]),
        (Increments(increment=0.5, every=5, begin=1), [4.0] * 6 + [4.5] * 5 + [5.0]),
        (StopAfter(step=7), [4.0] * 7 + [0.0] * 5),
    ],
    ids=["constant", "linear", "increments", "stop"],
)
def test_the_weight_of_the_penalty_follows_its_schedule(schedule, expected, tmp_path):
    config = tiny_config(regularizer={"probability": 1.0, "schedule": schedule})
    _, recorder = record(config, tmp_path / "run")
    assert [values["regularizer_weight"] for values in recorder.values] == pytest.approx(expected)
    for values, weight in zip(recorder.values, expected, strict=True):
        assert ("jacobian_norm" in values) == (weight > 0)


# The penalty


def test_the_penalty_is_applied_on_the_steps_that_tau_chooses(tmp_path):
    config = tiny_config(regularizer={"probability": 0.3}, loop={"num_steps": 100, "batch_size": 2}, log=RARELY)
    _, recorder = record(config, tmp_path / "run")
    applied = [values["penalty"] > 0 for values in recorder.values]
    assert applied == [recorder.trainer.regularizer.tau(step) for step in range(100)]
    assert applied == ["jacobian_norm" in values for values in recorder.values]
    # Within four standard deviations.
    assert abs(sum(applied) / 100 - 0.3) <= 4 * math.sqrt(0.3 * 0.7 / 100)
    for values in recorder.values:
        assert values["loss"] == pytest.approx(values["task_loss"] + values["penalty"], rel=1e-5)
    assert ["jacobian_norm" in record for record in events_of(tmp_path / "run", "train")] == applied


def test_the_recorded_norm_is_that_of_the_jacobian(tmp_path):
    # The state is a scalar, so that any probe of ±1 gives the square of the derivative.
    config = tiny_config(regularizer={"probability": 1.0}, solver={"max_evals": 50, "tol": 1e-7}, loop={"num_steps": 1})
    initial, recorder = record(config, tmp_path / "run")
    model = ToyDEQ()
    model.load_state_dict(initial)
    x, _ = recorder.trainer.reader.get(0, 0)
    with torch.no_grad():
        z = model(x, solver=Anderson(max_evals=50, tol=1e-7))
        cell = model.layer.cell
        active = (z @ cell.W1.T + x @ cell.U.T + cell.b > 0).float()
        derivative = active @ (cell.W1 * cell.W2)
    assert recorder.values[0]["jacobian_norm"] == pytest.approx(float(derivative.square().mean()), rel=1e-4)


def test_a_closed_loop_records_the_weight_that_was_applied(tmp_path):
    config = tiny_config(
        regularizer={"schedule": ClosedLoop(target=1e-3), "weight": 0.2, "probability": 1.0}, solver={"max_evals": 3}
    )
    _, recorder = record(config, tmp_path / "run")
    regularizer = config.regularizer.for_run(num_steps=12, steps_per_epoch=4, seed=config.loop.seed)
    applied = []
    for step, values in enumerate(recorder.values):
        applied.append(regularizer.gamma(step))
        regularizer.observe(residual=values["forward_residual"], is_cut=values["penalty_cut"] > 0.5)
    assert len(set(applied)) > 1
    assert [values["regularizer_weight"] for values in recorder.values] == applied


def test_a_closed_loop_records_the_norm_itself_even_where_its_guard_holds_the_penalty_back(tmp_path):
    def config(schedule):
        return tiny_config(
            regularizer={"schedule": schedule, "weight": 50.0, "probability": 1.0},
            solver={"max_evals": 50, "tol": 1e-7},
            loop={"num_steps": 1},
        )

    _, guarded = record(config(ClosedLoop(target=1e-9)), tmp_path / "guarded")
    _, plain = record(config(Constant()), tmp_path / "plain")
    assert guarded.values[0]["penalty"] < plain.values[0]["penalty"]
    assert guarded.values[0]["jacobian_norm"] == pytest.approx(plain.values[0]["jacobian_norm"], rel=1e-6)


def test_a_closed_loop_on_the_spectral_radius_follows_the_evaluations(tmp_path):
    schedule = {
        "schedule": ClosedLoop(target=0.3, observed="spectral_radius", gain=0.2),
        "weight": 0.2,
        "probability": 1.0,
    }
    log = {"eval_every": 4, "spectrum_samples": 4, "spectrum_products": 8}
    config = tiny_config(regularizer=schedule, log=log)
    _, recorder = record(config, tmp_path / "run")
    regularizer = config.regularizer.for_run(num_steps=12, steps_per_epoch=4)
    radii = [line["spectral_radius"] for line in events_of(tmp_path / "run", "evaluation")]
    expected = []
    for radius in radii:
        expected += 4 * [regularizer.gamma(0)]
        regularizer.observe(spectral_radius=radius)
    assert len(set(expected)) == 3
    assert [values["regularizer_weight"] for values in recorder.values] == expected
    _, unrolled = record(tiny_config(regularizer=schedule, log=log, warmup={"num_steps": 6}), tmp_path / "unrolled")
    assert {values["regularizer_weight"] for values in unrolled.values[6:8]} == {0.2}
    with pytest.raises(ValueError, match="spectrum_samples is 0"):
        tiny_config(regularizer=schedule, log={**log, "spectrum_samples": 0})


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
    sections = {"solver": {"max_evals": 5, "tol": 0.0}, "budget": RandomBudget(low=-2, high=3), "log": RARELY}
    first, again, other = (
        budgets(tiny_config(**sections, loop={"num_steps": 40, "batch_size": 2, "seed": seed}), tmp_path / name)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert len(first) == 40
    assert set(first) == {3, 4, 5, 6, 7, 8}
    assert first == again != other


def test_budgets_can_be_random_on_penalized_steps_only(tmp_path):
    config = tiny_config(
        solver={"max_evals": 5},
        budget=RandomBudget(low=1, high=2, when="penalized"),
        regularizer={"probability": 0.5, "schedule": StopAfter(step=20)},
        loop={"num_steps": 40},
    )
    regularizer = config.regularizer.for_run(num_steps=40, steps_per_epoch=4, seed=0)
    expected = [regularizer.tau(step) and step < 20 for step in range(40)]
    assert any(expected)
    assert [budget > 5 for budget in budgets(config, tmp_path / "a")] == expected


def test_evaluation_may_have_a_budget_of_its_own(tmp_path):
    config = tiny_config(
        solver={"max_evals": 2, "tol": 0.0}, eval_solver=Anderson(max_evals=9, tol=0.0), loop={"num_steps": 3}
    )
    train(config, tmp_path / "run")
    assert [line["forward_evals"] for line in events_of(tmp_path / "run", "train")] == [2, 2, 2]
    # Samples that cannot get any better stop before their budget is spent.
    assert 2 < events_of(tmp_path / "run", "evaluation")[-1]["forward_evals"] <= 9


# Data and evaluation


@pytest.mark.parametrize("is_training", [True, False])
def test_means_are_over_samples_whatever_the_size_of_the_last_batch(is_training):
    data = LineData(num_validation=7, dtype="float64").load().validation
    model, solver = ToyDEQ(hidden=5).double().train(is_training), Anderson(max_evals=60, tol=1e-12)
    evaluator = Evaluator(task=Regression(), process=Process(), batch_size=3)
    measured = evaluator.measure(model, data, solver)
    with torch.no_grad():
        output, eq = model.solve(data.inputs, solver=solver)
    assert measured.score == pytest.approx(float((output - data.targets).square().mean()), rel=1e-9)
    assert measured.forward_evals == pytest.approx(float(eq.stats.num_evals.double().mean()))
    assert (measured.converged, measured.max_evals) == (1.0, 60)
    evaluator.measure_spectrum(model, data, solver, num_samples=3, max_products=5, seed=0)
    # The mode of the model is left alone.
    assert model.training == is_training


def test_evaluations_unroll_the_cell_as_long_as_training_does(tmp_path):
    config = double_config(
        warmup={"num_steps": 6, "depth": 5}, log={"eval_every": 3, "spectrum_samples": 3}, loop={"num_steps": 9}
    )
    train(config, tmp_path / "run")
    evals = [line["forward_evals"] for line in events_of(tmp_path / "run", "evaluation")]
    assert evals[0] == 5
    assert evals[1] != 5
    data = config.data.load().validation
    model = ToyDEQ(hidden=5).double()
    evaluator = Evaluator(task=Regression(), process=Process())
    measured = evaluator.measure(model, data, Anderson(max_evals=9), depth=3)
    with torch.no_grad():
        output, _ = model.unroll(data.inputs, 3)
    assert measured.score == pytest.approx(float((output - data.targets).square().mean()), rel=1e-9)
    assert measured.max_evals == 3


def test_the_spectrum_of_a_scalar_state_is_its_derivative():
    x = torch.linspace(-1, 1, 6)[:, None]
    data = InMemory(inputs=x, targets=x)
    model, solver = ToyDEQ(hidden=8), Anderson(max_evals=60, tol=1e-7)
    measured = Evaluator(task=Regression(), process=Process()).measure_spectrum(
        model, data, solver, num_samples=4, max_products=8, seed=0
    )
    with torch.no_grad():
        # Spread over all of them.
        x = x[[0, 2, 3, 5]]
        z = model(x, solver=solver)
        cell = model.layer.cell
        slopes = ((z @ cell.W1.T + x @ cell.U.T + cell.b > 0).float() @ (cell.W1 * cell.W2)).abs()
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
    records = events_of(tmp_path / "run", "train")
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


@pytest.mark.parametrize(
    ("solver", "adjoint"),
    [
        (Broyden, Shine()),
        (NewtonKrylov, Implicit(Broyden(max_evals=6))),
        (Anderson, Implicit(Picard(max_evals=6))),
        (Picard, Phantom(num_steps=2)),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_other_solvers_and_gradients_train_too(solver, adjoint, tmp_path):
    path = tmp_path / "run"
    train(tiny_config(solver=solver(max_evals=6, tol=1e-3), adjoint=adjoint, loop={"num_steps": 3}), path)
    assert [line["event"] for line in metrics_of(path)] == ["train"] * 3 + ["evaluation", "finished"]
    assert all(math.isfinite(line["loss"]) for line in metrics_of(path)[:-1])


def test_windows_average_over_their_steps(tmp_path):
    train(tiny_config(), tmp_path / "single")
    train(tiny_config(log={"every": 5}), tmp_path / "window")
    single, window = (events_of(tmp_path / name, "train") for name in ("single", "window"))
    assert [r["step"] for r in window] == [5, 10, 12]
    for line, steps in zip(window, (single[:5], single[5:10], single[10:]), strict=True):
        assert line["loss"] == pytest.approx(sum(s["loss"] for s in steps) / len(steps))
        norms = [s["jacobian_norm"] for s in steps if "jacobian_norm" in s]
        assert ("jacobian_norm" in line) == bool(norms)
        if norms:
            assert line["jacobian_norm"] == pytest.approx(sum(norms) / len(norms))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_cell_gives_the_same_run(tmp_path):
    train(tiny_config(loop={"num_steps": 3}), tmp_path / "plain")
    train(tiny_config(loop={"num_steps": 3, "compile": True}), tmp_path / "compiled")
    for event in ("train", "evaluation"):
        compiled, plain = (events_of(tmp_path / name, event) for name in ("compiled", "plain"))
        assert [line["loss"] for line in compiled] == pytest.approx([line["loss"] for line in plain], rel=1e-4)


# Data of others


@dataclass(frozen=True, kw_only=True)
class WithoutTask(AbstractDataConfig):
    name = "no task"

    def load(self):
        return LineData().load()


@dataclass(frozen=True, kw_only=True)
class WithoutSplits(LineData):
    def load(self):
        return super().load().train


def test_data_without_a_task_or_without_splits_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"data\.task is missing; WithoutTask needs the class attribute task"):
        replace(tiny_config(), data=WithoutTask())
    with pytest.raises(InputError, match=r"WithoutSplits\.load returned a InMemory; it must return Splits"):
        make_trainer(replace(tiny_config(), data=WithoutSplits()), tmp_path / "run")
