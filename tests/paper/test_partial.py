"""Results of archived runs, and of a part of the runs: what is made of them, and what is said to be missing."""

import json
from dataclasses import replace

import pytest
from lab.train.runs import Crash, tiny_config, train_until
from paper.made_up import complete, row, summary
from paper.test_comparisons import made_up_result, short, with_weight

from steadeq.lab.cli.main import main
from steadeq.lab.run.archive import archive_run
from steadeq.lab.runner import run_state
from steadeq.paper import command
from steadeq.paper.catalog import RESULTS
from steadeq.paper.planned import PlannedRun, plan_runs, together
from steadeq.paper.table1 import TABLE1, add_times
from steadeq.paper.table2 import TABLE2
from steadeq.paper.table3 import TABLE3
from steadeq.paper.variant import Summary, Variant
from steadeq.paper.vision import IMAGENETTE, MDEQ


def files(folder):
    """Return all numbers that a result wrote."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".json", ".csv")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a result that was made of whole runs, with these in `runs`, and archived in `kept`."""
    folder, result = tmp_path_factory.mktemp("whole"), made_up_result()
    runs = complete(result.runs("cpu"), folder / "runs")
    result.produce(runs, folder / "out", "cpu")
    for name, path in runs.items():
        assert result.can_use(name, path, "cpu")
        archive_run(path, folder / "kept" / name)
    return folder


def test_a_result_of_archived_runs_is_that_of_the_whole_runs(whole, tmp_path):
    result = made_up_result()
    kept = {path.name: path for path in (whole / "kept").iterdir()}
    assert all(result.can_use(name, path, "cpu") for name, path in kept.items())
    assert result.produce(kept, tmp_path, "cpu") == result.read(whole / "out")[1]
    assert files(tmp_path) == files(whole / "out")


def test_a_part_of_the_runs_makes_a_part_of_the_result(tmp_path):
    def variants(scale):
        options = {"recipe": "synthetic", "max_evals": 4}
        return [
            Variant(name="plain", seeds=(0, 1), change=short, **options),
            Variant(name="another", change=lambda config: with_weight(short(config)), **options),
        ]

    result = replace(made_up_result(), variants=variants, quoted={}, budgets=())
    (first, second, other) = result.runs("cpu")
    runs = complete({first: result.runs("cpu")[first]}, tmp_path / "runs")
    *_, missing, planned = result.produce(runs, tmp_path / "out", "cpu")
    assert (missing.outcome, missing.evidence) == ("not tested", f"not finished yet: {other}")
    assert planned.claim == "nobody asks", "a row that will be there is claimed about"
    content = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert content["missing"] == {"plain": [second], "another": [other]}
    assert [(one["variant"], one["num_seeds"]) for one in content["variants"]] == [("plain", 1)]
    found, verdicts = result.read(tmp_path / "out")
    assert found.missing == content["missing"]
    assert result.judge(found) == verdicts
    table = result.table(found)
    assert "| plain, 1 of 2 seeds | 4 |" in table
    assert "another" not in table


def test_tables_can_be_made_while_rows_are_missing():
    nothing = Summary(missing={"a": ["a-seed0"]})
    assert add_times(nothing).missing == nothing.missing
    assert "a-seed0" not in TABLE1.table(nothing)
    assert TABLE3.table(summary()).count("| - ") == 18
    waiting = Summary([(MDEQ, row(MDEQ))], missing={IMAGENETTE + MDEQ: ["imagenette64-mdeq-day-seed0"]})
    verdicts = {verdict.claim: verdict for verdict in TABLE2.judge(waiting)}
    about = [verdict for claim, verdict in verdicts.items() if claim.startswith(IMAGENETTE)]
    assert len(about) == 3
    assert {verdict.outcome for verdict in about} == {"not tested"}


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(command, "RESULTS", {"made-up": made_up_result()})
    return made_up_result()


def options(tmp_path, *more):
    return ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--jobs", "1", *more]


def test_only_finished_runs_are_used_and_archived_ones_are_not_trained_again(tmp_path, made_up, capsys):
    assert main(["reproduce", "made-up", *options(tmp_path, "--finished-only")]) == 0
    shown = capsys.readouterr().out
    assert "made-up: 0 of 2 runs are finished" in shown
    assert "made-up is left out: none of its runs is finished." in shown
    assert not (tmp_path / "runs").exists()

    first, second = made_up.runs("cpu")
    complete({first: made_up.runs("cpu")[first]}, tmp_path / "runs")
    assert main(["reproduce", "made-up", *options(tmp_path, "--finished-only")]) == 0
    assert f"1 of 2 runs are finished, and these are not: {second}." in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == [first]
    assert not (tmp_path / "runs" / second).exists()

    # On another machine, with what is in the repository.
    elsewhere = ["--runs", str(tmp_path / "none"), "--out", str(tmp_path / "out"), "--finished-only"]
    numbers = files(tmp_path / "out" / "made-up")
    assert main(["reproduce", "made-up", *elsewhere]) == 0
    assert files(tmp_path / "out" / "made-up") == numbers
    assert main(["reproduce", "made-up", *elsewhere, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "finished, archived" in shown
    assert "missing" in shown
    assert main(["reproduce", "made-up", *elsewhere, "--archive", str(tmp_path / "empty"), "--dry-run"]) == 0
    assert "archived" not in capsys.readouterr().out


def test_an_archived_run_that_lacks_a_budget_is_trained_again(whole, tmp_path):
    def states(result):
        plan = plan_runs(result, "cpu", runs=tmp_path, archive=whole / "kept")
        return {(run.state, run.is_archived) for run in plan.values()}

    assert states(made_up_result()) == {("finished", True)}
    assert states(replace(made_up_result(), budgets=(5,))) == {("missing", False)}


def test_a_run_that_one_result_needs_with_its_weights_is_no_archived_one(whole, tmp_path):
    plan = plan_runs(made_up_result(), "cpu", runs=whole / "runs", archive=tmp_path)
    needed = {name: replace(run, minutes=None) for name, run in plan.items()}
    archived = {name: replace(run, is_archived=True, minutes=3.0) for name, run in plan.items()}
    for plans in ((needed, archived), (archived, needed)):
        found = together(plans)
        assert {(run.is_archived, run.minutes) for run in found.values()} == {(False, 3.0)}


def test_a_run_that_was_interrupted_takes_the_rest_of_its_time(tmp_path):
    config = tiny_config()
    with pytest.raises(Crash):
        train_until(config, tmp_path / "run", crash_at=6)
    options = {"config": config, "path": tmp_path / "run", "is_archived": False}
    state = run_state(tmp_path / "run", config)
    step = int(state.removeprefix("at step "))
    assert PlannedRun(state=state, minutes=12.0, **options).minutes_left == pytest.approx(12 - step)
    assert PlannedRun(state="missing", minutes=12.0, **options).minutes_left == 12
    assert PlannedRun(state="finished", minutes=12.0, **options).minutes_left == 0
    assert PlannedRun(state="missing", minutes=None, **options).minutes_left == 0


def test_a_day_is_enough_for_everything(tmp_path):
    plans = [
        plan_runs(result, "day", runs=tmp_path, archive=tmp_path)
        for result in RESULTS.values()
        if "day" in result.scales
    ]
    runs = together(plans)
    assert all(run.minutes for run in runs.values())
    assert sum(run.minutes_left for run in runs.values()) / 60 <= 28
