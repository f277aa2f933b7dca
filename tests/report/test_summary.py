from dataclasses import replace

import pytest
from report.folders import append, read, write_evaluation, write_run

from steadeq.report import group_runs


def test_numbers_are_those_of_the_records(tmp_path):
    (run,) = read(write_run(tmp_path / "a", accuracy=0.9, seconds=0.2, residual=0.03))
    numbers = run.numbers("validation")
    assert numbers["score"] == 0.9
    assert numbers["evals"] == 7.0
    assert numbers["residual"] == 0.03
    assert numbers["forward_evals"] == pytest.approx(6.0)
    assert numbers["backward_evals"] == pytest.approx(5.0)
    assert numbers["seconds"] == pytest.approx(40 * 0.2)
    assert numbers["seconds_per_step"] == pytest.approx(0.2)
    assert numbers["seconds_per_epoch"] == pytest.approx(2.0)
    assert numbers["memory_mb"] == 340.0
    assert numbers["num_parameters"] == 25042
    assert run.is_finished
    assert run.status == "finished, 40 steps"


def test_lines_that_average_over_several_steps_count_that_often(tmp_path):
    folder = write_run(tmp_path / "a", stop_at=0)
    append(folder, event="train", step=1, epoch=0.1, seconds=1.0, forward_evals=2.0)
    append(folder, event="train", step=4, epoch=0.4, seconds=2.0, forward_evals=6.0)
    numbers = read(folder)[0].numbers("validation")
    assert numbers["seconds"] == pytest.approx(1 + 3 * 2)
    assert numbers["forward_evals"] == pytest.approx((2 + 3 * 6) / 4)


def test_test_scores_are_those_at_the_evaluation_budget(tmp_path):
    folder = write_run(tmp_path / "a", recipe="digits-jr")
    write_evaluation(folder, {1: 0.3, 6: 0.8, 18: 0.99})
    assert read(folder)[0].numbers("test")["score"] == 0.8


def test_an_unfinished_run_says_where_it_stopped(tmp_path):
    (run,) = read(write_run(tmp_path / "a", stop_at=12))
    assert not run.is_finished
    assert run.status == "stopped at step 12 of 40"


def test_an_empty_run_has_no_numbers(tmp_path):
    folder = write_run(tmp_path / "a", stop_at=0)
    (run,) = read(folder)
    folder.metrics_path.unlink()
    (without,) = read(folder)
    for each in (run, without):
        assert each.status == "nothing recorded yet"
        assert each.numbers("validation")["score"] is None
        assert each.numbers("test")["seconds"] is None


def test_nulls_and_foreign_lines_are_left_out(tmp_path):
    folder = write_run(tmp_path / "a")
    append(folder, event="train", step=41, epoch=4.1, forward_residual=None, seconds=None)
    append(folder, event="skipped", step=42, reason="the loss is not finite", in_row=1)
    with folder.metrics_path.open("a") as file:
        file.write('[]\n{"event": "train"}\n{"event": "train", "step": 43, "forward_residual": NaN}\n{"event": "tr')
    (run,) = read(folder)
    assert len(run.series("train", "forward_residual")[0]) == 40
    assert run.num_skipped == 1


@pytest.mark.parametrize("content", ["", "[]", "{", '{"rows": 3}', '{"rows": [1, {}, {"max_evals": null}]}', "\0"])
def test_damaged_evaluations_count_as_missing(tmp_path, content):
    folder = write_run(tmp_path / "a")
    (folder.path / "evaluation.json").write_text(content)
    (run,) = read(folder)
    assert run.evaluation_rows == []
    assert run.numbers("test")["score"] is None


def test_a_penalty_that_begins_at_zero_is_one(tmp_path):
    (run,) = read(write_run(tmp_path / "a"))
    assert not run.is_regularized
    for change in ({"weight": 0.5}, {"schedule": "linear", "end": 1.0}, {"schedule": "closed-loop"}):
        config = replace(run.config, jacobian=replace(run.config.jacobian, **change))
        assert replace(run, config=config).is_regularized


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path):
    folders = [write_run(tmp_path / f"{w}-{s}", seed=s, weight=w) for w in (0.0, 2.0) for s in (0, 1, 2)]
    groups = group_runs(read(*folders))
    assert [group.label for group in groups] == ["γ = 0", "γ = 2"]
    assert [len(group.runs) for group in groups] == [3, 3]


def test_labels_name_recipes_where_these_differ(tmp_path):
    runs = read(write_run(tmp_path / "a"), write_run(tmp_path / "b", recipe="digits-jr"))
    assert [group.label for group in group_runs(runs)] == ["digits", "digits-jr"]
