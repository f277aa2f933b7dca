"""Runs that are finished are reused, runs that are not go on, and a folder of another run is refused."""

import json
import time

import pytest
from lab.train.runs import Crash, assert_same, final_state, metrics_of, snapshot, tiny_config, train, train_until

from steadeq.lab import runner
from steadeq.lab.errors import InputError
from steadeq.lab.optimizers import SGD
from steadeq.lab.run.record import RunRecord
from steadeq.lab.runner import complete_evaluation, complete_run, complete_runs, run_state
from steadeq.lab.train import Process
from steadeq.lab.train.display import Display

CONFIG = tiny_config()
OTHER = tiny_config(loop={"seed": 1})


def complete(path, config=CONFIG):
    complete_run(config, path, process=Process(), display=Display())
    return path


def budgets(evaluation):
    return [row.max_evals for row in evaluation.rows]


def test_a_finished_run_is_reused_and_one_of_another_config_left_alone(tmp_path):
    path = complete(tmp_path / "run")
    before = snapshot(tmp_path)
    complete(path)
    with pytest.raises(InputError, match=r"loop\.seed is 0, not 1"):
        complete(path, OTHER)
    assert snapshot(tmp_path) == before
    assert metrics_of(path)[-1]["step"] == 12


def test_the_state_of_a_run_is_told_and_one_that_crashed_goes_on(tmp_path):
    path = tmp_path / "run"
    assert run_state(path, CONFIG) == "missing"
    with pytest.raises(Crash):
        train_until(CONFIG, path, crash_at=6)
    assert run_state(path, CONFIG) == "at step 6"
    assert run_state(path, OTHER) == "another config"
    complete(path)
    assert run_state(path, CONFIG) == "finished"
    train(CONFIG, tmp_path / "whole")
    assert_same(final_state(path), final_state(tmp_path / "whole"))


def test_an_evaluation_is_made_once_and_again_where_it_does_not_fit(tmp_path, monkeypatch):
    asked, plain = [], runner.sweep_budgets

    def watch(trained, process, *, budgets):
        asked.append(list(budgets))
        return plain(trained, process, budgets=budgets)

    monkeypatch.setattr(runner, "sweep_budgets", watch)
    path = complete(tmp_path / "run")
    file = path / "evaluation.json"
    first = complete_evaluation(path, budgets=(1, 3))
    assert budgets(first) == [1, 3]
    assert complete_evaluation(path, budgets=(1, 3)) == first
    assert asked == [[1, 3]]
    # Budgets are added to what was evaluated.
    assert budgets(complete_evaluation(path, budgets=(2, 3))) == [2, 3]
    assert asked[1:] == [[2]]
    assert budgets(RunRecord.read(path).evaluation) == [1, 2, 3]
    # A damaged file, and that of an earlier checkpoint, are made anew.
    for content in ("{", json.dumps({**json.loads(file.read_text()), "step": 8})):
        file.write_text(content)
        again = complete_evaluation(path, budgets=(1, 3))
        assert (again.step, [row.loss for row in again.rows]) == (12, [row.loss for row in first.rows])
    assert asked[2:] == [[1, 3], [1, 3]]


def test_a_run_that_diverged_is_a_result_and_is_not_made_again(tmp_path):
    config = tiny_config("synthetic", loop={"max_bad_steps": 2}, optimizer=SGD(learning_rate=1e37))
    path = complete(tmp_path / "run", config)
    assert RunRecord.read(path).has_diverged
    assert run_state(path, config) == "diverged"
    before = snapshot(tmp_path)
    complete(path, config)
    assert snapshot(tmp_path) == before


@pytest.mark.slow
def test_an_error_of_one_worker_stops_the_others_which_save(tmp_path):
    # The second folder holds another run, which is found out while the first has hours to go.
    train(tiny_config(), tmp_path / "other")
    long = tiny_config(loop={"num_steps": 10**6}, log={"eval_every": 10**6, "checkpoint_every": 10**6})
    begin = time.monotonic()
    with pytest.raises(InputError, match="holds another run"):
        complete_runs({tmp_path / "long": long, tmp_path / "other": OTHER}, num_jobs=2, display=Display())
    assert time.monotonic() - begin < 60
    assert run_state(tmp_path / "long", long) != "finished"
