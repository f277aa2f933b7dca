"""Archived runs: what they recorded without their weights, and nothing about the machine."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from lab.train.runs import crash, tiny_config, train

from steadeq.lab.errors import InputError, RunError
from steadeq.lab.run.archive import archive_run
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord, sessions_to_json
from steadeq.lab.runner import complete_evaluation, run_state

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "run"
    train(CONFIG, path)
    complete_evaluation(path, budgets=(1, 3))
    return path


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_an_archived_run_says_what_the_run_says(run, tmp_path):
    archive_run(run, tmp_path / "kept")
    whole, kept = RunRecord.read(run), RunRecord.read(tmp_path / "kept")
    for name in ("config", "step", "training", "validations", "evaluation", "is_finished", "clock", "problems"):
        assert getattr(kept, name) == getattr(whole, name), name
    assert run_state(tmp_path / "kept", CONFIG) == "finished"
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        *("config.json", "metrics.jsonl", "evaluation.json", "environment.json")
    }


def test_nothing_of_the_command_line_is_archived(run, tmp_path):
    file = run / "environment.json"
    sessions = [
        replace(one, arguments=("digits", "--out", "/home/somebody/run")) for one in RunRecord.read(run).sessions
    ]
    file.write_text(sessions_to_json(sessions))
    archive_run(run, tmp_path / "kept")
    assert all("somebody" not in path.read_text() for path in (tmp_path / "kept").iterdir())
    kept = RunRecord.read(tmp_path / "kept").sessions
    assert [one.threads for one in kept] == [one.threads for one in sessions]


@pytest.mark.parametrize("place", ["/home/somebody/start", "~/start", "C:\\start", "file:///start"])
def test_a_run_that_names_a_place_on_the_machine_is_refused(place, run, tmp_path):
    config = json.loads((run / "config.json").read_text())
    config["loop"]["init_from"] = place
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="a path on this machine"):
        archive_run(run, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    crash(CONFIG, tmp_path / "run", at=6)
    with pytest.raises(InputError, match="only finished runs can be archived"):
        archive_run(tmp_path / "run", tmp_path / "kept")


def test_an_archived_run_is_evaluated_at_the_budgets_that_it_was_archived_with(run, tmp_path):
    archive_run(run, tmp_path / "kept")
    assert complete_evaluation(tmp_path / "kept", budgets=(3,)) == complete_evaluation(run, budgets=(3,))
    with pytest.raises(RunError, match="no checkpoint, and no evaluation at 2"):
        complete_evaluation(tmp_path / "kept", budgets=(2, 3))


def test_archiving_again_adds_what_is_new_and_touches_nothing_else(run, tmp_path):
    archive_run(run, tmp_path / "kept")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    complete_evaluation(run, budgets=(2,))
    archive_run(run, tmp_path / "kept")
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"evaluation.json"}
    assert RunFolder(tmp_path / "kept").checkpoints().steps() == []
