"""What is read from the folder of a run, however it ended."""

import json
import math
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest
from lab.report.folders import append, diagnosis, iteration, read, write_run

from steadeq.jacobian import schedules
from steadeq.lab.config import RandomBudget
from steadeq.lab.errors import InputError
from steadeq.lab.recipes import get
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import (
    Evaluation,
    EvaluationRow,
    RunDiagnosis,
    RunRecord,
    Session,
    TrainLine,
    ValidationLine,
    sessions_from_json,
    sessions_to_json,
    spread,
)
from steadeq.models import ResNet, ToyDEQ

EVALUATION = Evaluation(
    split="test",
    step=40,
    metric="perplexity",
    higher_is_better=False,
    unit="token",
    memory_mb=512.0,
    rows=(
        EvaluationRow(max_evals=1, loss=800.0, score=math.inf, forward_residual=math.nan, seconds_per_sample=1e-3),
        EvaluationRow(max_evals=8, loss=4.0, score=54.6, forward_residual=0.1, forward_evals=7.5, converged=0.25),
    ),
)


def set_sessions(run, *sessions):
    (run.path / "environment.json").write_text(sessions_to_json(sessions))


# How far it came


@pytest.mark.parametrize(
    ("num_steps", "stop_at", "status"),
    [
        (40, None, "finished, 40 steps"),
        (40, 40, "all 40 steps made, the last not saved"),
        (45, 45, "all 45 steps made, the last not evaluated"),
        (40, 12, "stopped at step 12 of 40"),
    ],
)
def test_a_run_says_how_far_it_came(num_steps, stop_at, status, tmp_path):
    (run,) = read(write_run(tmp_path / "a", num_steps=num_steps, stop_at=stop_at))
    assert run.is_finished == (stop_at is None)
    assert not run.has_diverged
    assert run.step == (stop_at or num_steps)
    assert run.num_steps == num_steps
    assert run.status == status
    assert run.problems == ()


def test_a_diverged_run_says_so(tmp_path):
    folder = write_run(tmp_path / "a", stop_at=12)
    for number in (1, 2):
        append(folder, event="skipped", step=12 + number, reason="the loss is not finite", in_row=number)
    append(folder, event="diverged", step=14, in_row=2)
    (run,) = read(folder)
    assert run.has_diverged
    assert not run.is_finished
    assert run.num_skipped == 2
    assert run.status == "diverged at step 14 of 40"
    # Unless it went on.
    append(folder, event="train", step=15, loss=1.0)
    assert not read(folder)[0].has_diverged


def test_a_run_without_lines_is_empty(tmp_path):
    folder = write_run(tmp_path / "a", stop_at=0)
    (run,) = read(folder)
    folder.metrics_path.unlink()
    (without,) = read(folder)
    for each in (run, without):
        assert each.status == "nothing recorded yet"
        assert (each.training, each.validations, each.step) == ((), (), 0)
        assert each.seconds is each.seconds_per_step is each.mean("loss") is each.steps_per_epoch is None
        assert [len(values) for values in each.series("train", "loss")] == [0, 0]


def test_steps_are_counted_by_epochs_where_the_config_does(tmp_path):
    config = get("digits").build()
    folder = RunFolder.create(tmp_path / "a", config)
    append(folder, event="train", step=3, epoch=0.1, loss=1.0)
    (run,) = read(folder)
    assert run.steps_per_epoch == pytest.approx(30)
    assert run.num_steps == 30 * config.loop.num_epochs
    append(folder, event="train", step=4, epoch=None)
    assert read(folder)[0].status == f"stopped at step 4 of {30 * config.loop.num_epochs}"


# What was recorded


def test_lines_hold_what_was_written_and_the_metric_is_the_score(tmp_path):
    folder = write_run(tmp_path / "a", stop_at=0)
    append(folder, event="train", step=1, epoch=0.1, accuracy=0.5, regularizer_weight=2, cpu_seconds=0.25)
    append(folder, event="evaluation", step=1, accuracy=0.75, spectral_radius_max=0.9, converged=1.0)
    (run,) = read(folder)
    assert run.metric == run.task.metric == "accuracy"
    assert run.training == (TrainLine(step=1, epoch=0.1, score=0.5, regularizer_weight=2.0, cpu_seconds=0.25),)
    assert run.validations == (ValidationLine(step=1, score=0.75, spectral_radius_max=0.9, converged=1.0),)
    steps, scores = run.series("evaluation", "score")
    assert (steps.tolist(), scores.tolist()) == ([1.0], [0.75])
    with pytest.raises(AttributeError):
        run.series("train", "no_such_field")


def test_what_is_not_finite_is_missing(tmp_path):
    folder = write_run(tmp_path / "a")
    append(folder, event="train", step=41, epoch=4.1, forward_residual=None, seconds=None, loss=True, penalty="1")
    append(folder, event="train", step=42, forward_residual=math.nan, grad_norm=math.inf, loss=10**400)
    (run,) = read(folder)
    assert run.training[-2:] == (TrainLine(step=41, epoch=4.1), TrainLine(step=42))
    assert len(run.series("train", "forward_residual")[0]) == 40
    assert run.problems == ()


def test_damaged_lines_are_left_out_and_named(tmp_path):
    folder = write_run(tmp_path / "a")
    with folder.metrics_path.open("a") as file:
        file.write('[]\n{"event": "train"}\n{"event": "train", "step": 43, "loss": NaN}\n{"event": "tr')
    (run,) = read(folder)
    assert len(run.training) == 41
    assert run.step == 43
    # The last line is one that a crash cut short.
    assert run.problems == ("metrics.jsonl has 2 lines that cannot be read.",)
    folder.metrics_path.write_bytes(
        b'{"event": "train", "step": 1, "loss": 1}\n\xff\0\n{"event": "train", "step": 2}\n'
    )
    (run,) = read(folder)
    assert [line.step for line in run.training] == [1, 2]
    assert run.problems == ("metrics.jsonl has 1 line that cannot be read.",)


def test_every_prefix_of_a_file_can_be_read(tmp_path):
    folder = write_run(tmp_path / "a", num_steps=12)
    content = folder.metrics_path.read_bytes()
    for length in random.Random(0).sample(range(len(content)), 20):
        folder.metrics_path.write_bytes(content[:length])
        (run,) = read(folder)
        assert run.problems == ()
        assert len(run.training) + len(run.validations) in {content[:length].count(b"\n") + extra for extra in (0, 1)}


def test_an_explicit_network_has_no_solves(tmp_path):
    base = get("digits").build()
    config = replace(base, model=ResNet.Config(), budget=RandomBudget())
    folder = RunFolder.create(tmp_path / "a", config)
    append(folder, event="train", step=1, epoch=0.1, loss=2.0, accuracy=0.1, seconds=0.5)
    append(folder, event="evaluation", step=1, epoch=0.1, accuracy=0.2)
    rows = (EvaluationRow(max_evals=0, loss=2.0, score=0.25, seconds_per_sample=1e-4),)
    evaluation = replace(EVALUATION, metric="accuracy", higher_is_better=True, unit="sample", rows=rows)
    (folder.path / "evaluation.json").write_text(evaluation.to_json())
    (run,) = read(folder)
    assert run.training[0].forward_evals is run.validations[0].spectral_radius is run.mean("forward_evals") is None
    assert run.evaluation.row(0).score == 0.25
    assert run.evaluation.row(0).forward_evals is run.evaluation.row(4) is None
    assert run.num_parameters == sum(p.numel() for p in ResNet().parameters())
    assert evaluation.to_csv() == "max_evals,loss,accuracy,seconds_per_sample\n0,2.0,0.25,0.0001\n"


def test_a_penalty_that_begins_at_zero_is_one(tmp_path):
    (run,) = read(write_run(tmp_path / "a"))
    assert not run.is_regularized
    growing = schedules.Linear(end=1.0), schedules.ClosedLoop()
    for change in ({"weight": 0.5}, *({"schedule": schedule} for schedule in growing)):
        config = replace(run.config, regularizer=replace(run.config.regularizer, **change))
        assert replace(run, config=config).is_regularized
    for change in ({"weight": 0.5, "probability": 0.0}, {"schedule": schedules.Linear(end=0.0)}):
        config = replace(run.config, regularizer=replace(run.config.regularizer, **change))
        assert not replace(run, config=config).is_regularized


# Times


def test_a_line_counts_as_many_steps_as_it_covers(tmp_path):
    folder = write_run(tmp_path / "a", stop_at=0)
    append(folder, event="train", step=1, epoch=0.1, seconds=1.0, forward_evals=2.0)
    append(folder, event="train", step=4, epoch=0.4, seconds=2.0, forward_evals=6.0, jacobian_norm=3.0)
    append(folder, event="train", step=5, epoch=0.5, seconds=9.0)
    (run,) = read(folder)
    assert run.seconds == pytest.approx(1 + 3 * 2 + 9)
    assert run.seconds_per_step == pytest.approx(run.seconds / 5)
    assert run.mean("forward_evals") == pytest.approx((2 + 3 * 6) / 4)
    assert run.mean("jacobian_norm") == 3.0
    steps, elapsed = run.elapsed()
    np.testing.assert_allclose(steps, [1, 4, 5])
    np.testing.assert_allclose(elapsed, [1, 7, 16])


@pytest.mark.parametrize(
    ("sessions", "clock"),
    [
        ([Session(device="cpu", threads=1)], "cpu_seconds"),
        ([Session(device="cpu", threads=1)] * 2, "cpu_seconds"),
        ([Session(device="cpu", threads=1), Session(device="cpu", threads=2)], "seconds"),
        ([Session(device="NVIDIA A100", threads=1)], "seconds"),
        ([Session()], "seconds"),
        ([], "seconds"),
    ],
)
def test_the_time_of_the_processor_counts_where_one_thread_did_the_work(tmp_path, sessions, clock):
    folder = write_run(tmp_path / "a", stop_at=0)
    append(folder, event="train", step=2, epoch=0.1, seconds=4.0, cpu_seconds=3.0)
    set_sessions(folder, *sessions)
    (run,) = read(folder)
    assert run.clock == clock
    assert run.seconds_per_step == {"seconds": 4.0, "cpu_seconds": 3.0}[clock]
    # Without the time of the processor the wall clock counts.
    (without,) = read(write_run(tmp_path / "b", seconds=0.2))
    assert (without.clock, without.seconds_per_step) == ("seconds", pytest.approx(0.2))


# Other files


def test_sessions_are_read(tmp_path):
    folder = write_run(tmp_path / "a")
    (session,) = read(folder)[0].sessions
    assert session.device == "cpu"
    assert session.processes == 1
    assert session.threads >= 1
    folder.record_environment(device="cpu", world_size=2)
    assert [session.processes for session in read(folder)[0].sessions] == [1, 2]
    text = json.dumps([3, {"device": 7, "threads": True, "arguments": ["train", "--out"]}])
    assert sessions_from_json(text) == (Session(arguments=("train", "--out")),)


def test_evaluations_survive_being_written():
    again = Evaluation.from_json(EVALUATION.to_json())
    unknown = replace(EVALUATION.rows[0], score=None, forward_residual=None)
    assert again == replace(EVALUATION, rows=(unknown, EVALUATION.rows[1]))
    assert again.unit == "token"
    assert again.row(8).score == 54.6
    assert again.row(3) is None
    # The metric is stored under its name.
    assert json.loads(EVALUATION.to_json())["rows"][1]["perplexity"] == 54.6


def test_diagnoses_survive_being_written(tmp_path):
    known = diagnosis(operator_norm_errors=(None, *[0.5] * 7))
    num_evals = len(known.residual_low)
    mean = (math.nan, *[0.5] * (num_evals - 1))
    text = replace(known, operator_norm_errors=(math.inf, *[0.5] * 7), residual_mean=mean).to_json()
    assert RunDiagnosis.from_json(text) == replace(known, residual_mean=(None, *mean[1:]))
    folder = write_run(tmp_path / "a")
    (folder.path / "diagnosis.json").write_text(known.to_json())
    assert read(folder)[0].diagnosis == known


DAMAGED = ["", "[]", "{", '{"rows": 3}', '{"rows": [1, {}, {"max_evals": null}]}', "\0", EVALUATION.to_json()[:-30]]
ROWS = [1, {}, {"max_evals": None}, {"max_evals": True}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, content) for name in ("evaluation.json", "diagnosis.json") for content in DAMAGED),
        *(("evaluation.json", json.dumps({**json.loads(EVALUATION.to_json()), "rows": [row]})) for row in ROWS),
        # Sequences that do not fit each other, or the number of samples.
        *(
            ("diagnosis.json", json.dumps(json.loads(diagnosis().to_json()) | changes))
            for changes in (
                {"residual_low": [0.1]},
                {"num_samples": 3},
                {"iteration": None},
                {"iteration": {**iteration(), "rate": []}},
            )
        ),
    ],
)
def test_damaged_files_count_as_missing_and_are_named(name, content, tmp_path):
    folder = write_run(tmp_path / "a")
    (folder.path / name).write_text(content)
    (run,) = read(folder)
    assert run.evaluation is run.diagnosis is None
    assert run.problems == (f"{name} cannot be read.",)


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path, what in ((tmp_path, "has no config"), (tmp_path / "file", "is a file"), (tmp_path / "b", "not exist")):
        with pytest.raises(InputError, match=f"is not a run: it .*{what}"):
            RunRecord.read(path)
    ToyDEQ(hidden=6).save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="model is not a run: it holds a model"):
        RunRecord.read(tmp_path / "model")


# Seeds


def test_the_spread_is_that_of_the_sample_and_one_seed_has_none():
    values = [1.0, 2.0, 4.0]
    found = spread([*values, None])
    assert (found.mean, found.std) == pytest.approx((statistics.mean(values), statistics.stdev(values)))
    assert found.count == 3
    found = spread([0.5])
    assert (found.mean, found.std, found.count) == (0.5, None, 1)
    assert spread([]) is spread([None]) is None
