from dataclasses import replace

import pytest
from lab.report.folders import read, write_evaluation, write_run

from steadeq.lab.report import group_runs
from steadeq.lab.report.groups import measure


def test_numbers_are_those_of_the_records(tmp_path):
    (run,) = read(write_run(tmp_path / "a", accuracy=0.9, seconds=0.2, residual=0.03))
    expected = {
        "score": 0.9,
        "evals": 7.0,
        "residual": 0.03,
        "forward_evals": pytest.approx(6.0),
        "backward_evals": pytest.approx(5.0),
        "seconds": pytest.approx(40 * 0.2),
        "seconds_per_step": pytest.approx(0.2),
        "memory_mb": 340.0,
        "num_parameters": 25042,
        "num_skipped": 0,
    }
    assert {name: measure(run, name, "validation") for name in expected} == expected


def test_test_scores_are_those_at_the_evaluation_budget(tmp_path):
    folder = write_run(tmp_path / "a", recipe="digits-jr")
    write_evaluation(folder, {1: 0.3, 6: 0.8, 18: 0.99})
    assert measure(read(folder)[0], "score", "test") == 0.8
    # An evaluation on validation data has none.
    write_evaluation(folder, {6: 0.8}, split="validation")
    assert measure(read(folder)[0], "score", "test") is None


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path):
    folders = [write_run(tmp_path / f"{w}-{s}", seed=s, weight=w) for w in (0.0, 2.0) for s in (0, 1, 2)]
    groups = group_runs(read(*folders))
    assert [group.label for group in groups] == ["γ = 0", "γ = 2"]
    assert [len(group.runs) for group in groups] == [3, 3]
    # Labels name recipes where these differ.
    runs = read(folders[0], write_run(tmp_path / "b", recipe="digits-jr"))
    assert [group.label for group in group_runs(runs)] == ["digits", "digits-jr"]


def test_labels_name_the_fields_that_tell_runs_of_one_recipe_apart(tmp_path):
    (run,) = read(write_run(tmp_path / "a"))
    configs = [run.config, run.config.with_max_evals(7)]
    labels = [group.label for group in group_runs([replace(run, config=config) for config in configs])]
    assert labels == ["budget = 18, adjoint.solver.max_evals = 18", "budget = 7, adjoint.solver.max_evals = 7"]


def test_labels_that_would_be_equal_have_the_name_of_the_folder(tmp_path):
    runs = read(*(write_run(tmp_path / name) for name in ("a", "b", "c")))
    # The first two differ from each other in the third field only.
    changes = [(1, 1, 1), (1, 1, 2), (2, 2, 1)]
    changed = [
        replace(
            run, config=replace(run.config, loop=replace(run.config.loop, num_epochs=a, batch_size=b, accumulate=c))
        )
        for run, (a, b, c) in zip(runs, changes, strict=True)
    ]
    assert [group.label for group in group_runs(changed)] == [
        "loop.num_epochs = 1, loop.batch_size = 1 (a)",
        "loop.num_epochs = 1, loop.batch_size = 1 (b)",
        "loop.num_epochs = 2, loop.batch_size = 2 (c)",
    ]
