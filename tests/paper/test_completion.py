"""Experiments reuse what is finished, continue what is not, and refuse what is different."""

import json
from dataclasses import replace

import pytest
from train.runs import Crash, LineData, assert_same, final_state, snapshot, tiny_config, train, train_until

from steadeq.lab.errors import InputError
from steadeq.paper import completion
from steadeq.lab.runner.completion import complete_evaluation, complete_run, run_state
from steadeq.lab.train import Process
from steadeq.lab.train.display import SilentDisplay
from steadeq.lab.train.serialization import from_dict, to_dict

CONFIG = tiny_config()


def complete(path, config=CONFIG):
    return complete_run(config, path, process=Process(), display=SilentDisplay())


def test_a_finished_run_is_reused(tmp_path):
    complete(tmp_path / "run")
    before = snapshot(tmp_path)
    run = complete(tmp_path / "run")
    assert snapshot(tmp_path) == before
    assert run.metrics()[-1]["step"] == 12


def test_a_run_that_crashed_goes_on(tmp_path):
    train(CONFIG, tmp_path / "whole")
    with pytest.raises(Crash):
        train_until(CONFIG, tmp_path / "run", crash_at=6)
    complete(tmp_path / "run")
    assert_same(final_state(tmp_path / "run"), final_state(tmp_path / "whole"))


def test_a_run_of_another_config_is_left_alone(tmp_path):
    complete(tmp_path / "run")
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match=r"loop\.seed is 0, not 1"):
        complete(tmp_path / "run", replace(CONFIG, loop=replace(CONFIG.loop, seed=1)))
    assert snapshot(tmp_path) == before


def test_an_evaluation_is_made_once_and_anew_when_it_does_not_fit(tmp_path):
    run = complete(tmp_path / "run")
    first = complete_evaluation(run, process=Process(), budgets=(1, 3))
    assert [row["max_evals"] for row in first["rows"]] == [1, 3]
    # Marked, to see whether it is read.
    path = run.path / "evaluation.json"
    path.write_text(json.dumps({**first, "mark": 1}))
    assert complete_evaluation(run, process=Process(), budgets=(1, 3))["mark"] == 1
    assert "mark" not in complete_evaluation(run, process=Process(), budgets=(1, 2))
    path.write_text("{")
    assert len(complete_evaluation(run, process=Process(), budgets=(1, 2))["rows"]) == 2


def test_an_evaluation_of_an_earlier_checkpoint_is_made_anew(tmp_path):
    run = complete(tmp_path / "run")
    result = complete_evaluation(run, process=Process(), budgets=(1,))
    (run.path / "evaluation.json").write_text(json.dumps({**result, "step": 8}))
    assert complete_evaluation(run, process=Process(), budgets=(1,))["step"] == 12


def test_a_run_that_diverged_is_a_result_and_is_not_made_again(tmp_path):
    config = replace(tiny_config("synthetic", loop={"max_bad_steps": 2, "batch_size": 48}), data=LineData(bad=(0,)))
    # Other tests may have made another class known under this name.
    config = from_dict(to_dict(config))
    run = complete(tmp_path / "run", config)
    assert run.has_diverged()
    assert run_state(run.path, config) == "diverged"
    before = snapshot(tmp_path)
    assert complete(tmp_path / "run", config).has_diverged()
    assert snapshot(tmp_path) == before


def test_the_state_of_a_run_is_told(tmp_path):
    path = tmp_path / "run"
    assert run_state(path, CONFIG) == "missing"
    with pytest.raises(Crash):
        train_until(CONFIG, path, crash_at=6)
    assert run_state(path, CONFIG) == "at step 6"
    assert run_state(path, replace(CONFIG, loop=replace(CONFIG.loop, seed=1))) == "another config"
    complete(path)
    assert run_state(path, CONFIG) == "finished"


def test_budgets_are_added_to_what_was_evaluated(tmp_path, monkeypatch):
    run = complete(tmp_path / "run")
    complete_evaluation(run, process=Process(), budgets=(1, 3))
    asked = []
    plain = completion.evaluate_budgets

    def watch(run, process, *, budgets):
        asked.append(list(budgets))
        return plain(run, process, budgets=budgets)

    monkeypatch.setattr(completion, "evaluate_budgets", watch)
    result = complete_evaluation(run, process=Process(), budgets=(2, 3))
    assert asked == [[2]]
    assert [row["max_evals"] for row in result["rows"]] == [2, 3]
    written = json.loads((run.path / "evaluation.json").read_text())
    assert [row["max_evals"] for row in written["rows"]] == [1, 2, 3]
