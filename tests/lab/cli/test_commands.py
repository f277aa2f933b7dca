"""What the commands print and write when all is well."""

import csv
import json
import re
import subprocess
import sys

import pytest
from lab.cli.commands import refuse, succeed
from lab.train.runs import (
    assert_same,
    crash,
    environment,
    events_of,
    final_state,
    metrics_of,
    snapshot,
    tiny_config,
    train,
)

from steadeq.lab import recipes
from steadeq.lab.cli.main import commands, main
from steadeq.lab.cli.recipes import listed
from steadeq.lab.run.folder import RunFolder

SHORT = ("--loop.num-steps", "6", "--log.eval-every", "3", "--log.spectrum-samples", "0")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """What `steadeq train` makes by default in an empty folder, in six steps."""
    folder = tmp_path_factory.mktemp("short")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "synthetic-jr", *SHORT]) == 0
    return folder / "runs" / "synthetic-jr"


# Help


def test_help_version_and_the_list_of_recipes_do_not_import_torch():
    script = (
        "import sys, steadeq.paper; from steadeq.lab.cli.main import main; "
        "assert main(['--help']) == main(['--version']) == main([]) == 0; "
        "assert main(['trian']) == 2; "
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich', 'safetensors'} & set(sys.modules); "
        "assert not heavy, heavy; "
        "assert main(['recipes']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert all(command in result.stdout for command in commands())
    assert "steadeq 0." in result.stdout


# Train


def test_train_leaves_a_complete_run(short):
    assert {entry.name for entry in short.iterdir()} >= {
        *("config.json", "metrics.jsonl", "environment.json", "checkpoints")
    }
    assert not list(short.rglob("*tfevents*"))
    config = RunFolder(short).config()
    assert (config.recipe, config.loop.num_steps, config.regularizer.weight) == ("synthetic-jr", 6, 4.0)
    records = metrics_of(short)
    assert [r["step"] for r in records if r["event"] == "evaluation"] == [3, 6]
    assert [r["step"] for r in records if r["event"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert records[-1] == {"event": "finished", "step": 6}
    (session,) = json.loads((short / "environment.json").read_text())
    assert session["processes"] == 1
    assert session["device"] == "cpu"


def test_what_the_paper_plots_is_recorded(home, capfd):
    options = ("--loop.num-steps", "2", "--regularizer.probability", "1")
    succeed(capfd, "train", "digits-jr", "--out", "run", *options)
    lines = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    common = ("loss", "accuracy", "forward_residual", "forward_evals", "jacobian_norm")
    backward = ("backward_residual", "backward_evals", "regularizer_weight", "grad_norm", "learning_rate")
    for event, names in {
        "train": (*common, *backward, "seconds", "memory_mb"),
        "evaluation": (*common, "spectral_radius"),
    }.items():
        found = [line for line in lines if line["event"] == event]
        assert len(found) == {"train": 2, "evaluation": 1}[event]
        assert all(isinstance(line[name], float) for line in found for name in names)


def test_resuming_a_run_that_is_not_there_begins_it(short, home, capfd):
    output = succeed(capfd, "train", "synthetic-jr", "--out", "run", "--resume", *SHORT)
    assert "Starting anew" in output
    mse = events_of(short, "evaluation")[-1]["mse"]
    assert f"validation mse {mse:.4g}" in output.splitlines()[-1]
    assert_same(final_state(home / "run"), final_state(short))


def test_resuming_a_finished_run_is_quiet_and_changes_nothing(run, capfd):
    before = snapshot(run)
    mse = events_of(run, "evaluation")[-1]["mse"]
    same_fields = ["synthetic-jr", "--regularizer.weight", "4", "--loop.batch-size=16"]
    for arguments in (["synthetic-jr"], [], same_fields):
        output = succeed(capfd, "train", *arguments, "--resume", "--out", "run")
        assert f"validation mse {mse:.4g}" in output.splitlines()[-1]
        assert snapshot(run) == before


def test_the_number_of_evaluations_in_training_is_told_where_the_score_is_for_another(home, capfd):
    samples = ("--data.num-train", "64", "--data.num-validation", "16", "--data.num-test", "16")
    for name, told in (("prefix-sums", True), ("synthetic-jr", False)):
        output = succeed(capfd, "train", name, "--out", name, *SHORT, *(samples if told else ()))
        trained = f"(trained with up to 12; `steadeq evaluate {name}` tries other numbers)"
        assert (trained in output.splitlines()[-1]) == told


def test_profile_shares_add_up_to_all_of_the_time(short, home, capfd):
    # A run may begin in an empty folder.
    output = succeed(capfd, "train", "synthetic-jr", "--out", home, "--profile", *SHORT)
    shares = [float(share) for share in re.findall(r"([\d.-]+)%", output)]
    assert len(shares) == 8
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert min(shares) >= 0
    # Watching changes nothing.
    assert_same(final_state(home), final_state(short))


def test_tensorboard_shows_each_step_of_a_resumed_run_once(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config, path = tiny_config(log={"tensorboard": True}), tmp_path / "run"
    crash(config, path, at=7)
    train(config, path)
    events = event_accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(line["step"], pytest.approx(line["loss"])) for line in events_of(path, "train")]
    assert [step for step, _ in losses] == list(range(1, 13))
    assert [event.step for event in events.Scalars("evaluation/mse")] == [5, 10, 12]


# Evaluate


def evaluation_of(run):
    return json.loads((run / "evaluation.json").read_text())


def test_evaluate_prints_and_writes_the_same_numbers(run, capfd):
    output = succeed(capfd, "evaluate", "run", "--budgets", "1", "3", "6")
    result = evaluation_of(run)
    rows = list(csv.DictReader((run / "evaluation.csv").read_text().splitlines()))
    assert [row["max_evals"] for row in result["rows"]] == [1, 3, 6]
    assert (result["split"], result["metric"], result["higher_is_better"]) == ("test", "mse", False)
    assert result["step"] == 12
    assert [{name: float(value) for name, value in row.items()} for row in rows] == result["rows"]
    printed = [line.split() for line in output.splitlines() if re.match(r"\s*\d", line)]
    assert [int(cells[0]) for cells in printed] == [1, 3, 6]
    for cells, row in zip(printed, result["rows"], strict=True):
        assert cells[1] == f"{row['mse']:.4g}"
        assert cells[3] == f"{row['forward_residual']:.2e}"
        assert row["forward_evals"] <= row["max_evals"]
    assert "evaluation.json" in output
    assert "evaluation.csv" in output


def test_evaluate_goes_from_one_evaluation_to_the_budget_of_the_run_and_leaves_the_training_alone(run, capfd):
    before = snapshot(run)
    succeed(capfd, "evaluate", "run")
    rows = evaluation_of(run)["rows"]
    assert [row["max_evals"] for row in rows] == [1, 2, 3, 4, 5, 6]
    residuals = [row["forward_residual"] for row in rows]
    assert residuals == sorted(residuals, reverse=True)
    after = snapshot(run)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"evaluation.json", "evaluation.csv"}


@pytest.mark.parametrize("step", [8, 12])
def test_evaluate_agrees_with_the_evaluations_of_training(step, run, capfd):
    # The averaged weights included.
    succeed(capfd, "evaluate", "run", "--split", "validation", "--budgets", "6", "--step", step)
    result = evaluation_of(run)
    assert result["step"] == step
    (trained,) = [line for line in events_of(run, "evaluation") if line["step"] == step]
    for name in ("loss", "mse", "forward_residual", "forward_evals", "converged"):
        assert result["rows"][0][name] == trained[name]


# Diagnose, recipes, data


def test_diagnose_writes_numbers_for_every_sample_and_figures(run, capfd):
    output = succeed(capfd, "diagnose", "run", "--num-samples", "5", "--max-products", "8")
    # JSON has no infinity, which an error may be.
    result = json.loads((run / "diagnosis.json").read_text(), parse_constant=pytest.fail)
    assert result["num_samples"] == 5
    for values in (result["num_evals"], result["jacobian_norm"], result["spectral_radius"]):
        assert len(values) == 5
    # With a scalar state all these are the same number.
    radius = result["spectral_radius"]
    assert radius == pytest.approx(result["operator_norm"], rel=1e-3)
    assert [value**2 for value in radius] == pytest.approx(result["jacobian_norm"], rel=1e-3)
    assert list((run / "diagnosis").glob("*.png"))
    assert "spectral radius" in output


def test_recipes_are_listed_as_the_registry_has_them_though_no_file_is_imported():
    known = [(recipe.name, recipe.scale, recipe.summary) for recipe in map(recipes.get, recipes.names())]
    assert sorted(listed()) == sorted(known)
    assert all(re.match("[A-Z].*[.]$", summary) for _, _, summary in known)
    # Each line stands alone, as under grep.
    assert not [summary for _, _, summary in known if re.search(r"\bsame at\b|^The same|in the same way", summary)]


def test_recipes_can_be_filtered_by_words_and_scale(home, capfd):
    def names(*arguments):
        return {line.split()[0] for line in succeed(capfd, "recipes", *arguments).splitlines() if " cpu " in line}

    assert names() == {name for name in recipes.names() if recipes.get(name).scale == "cpu"}
    assert {"digits-jr", "digits-vit-jr"} <= names("digits", "jr") < names("digits")
    assert names("digits", "vit", "jr") == {"digits-vit-jr"}
    assert names("--scale", "paper") == set()
    assert names("DIGITS", "--scale", "cpu") == names("digits")
    line = refuse(capfd, "recipes", "digits", "--scale", "day")
    assert "No recipe at the scale day matches the words 'digits'" in line


def test_data_says_what_is_missing_and_where_the_rest_is(home, capfd):
    assert re.search(r"cifar10\s+missing", succeed(capfd, "data"))
    (home / "data" / "cifar-10-batches-bin").mkdir(parents=True)
    assert str(home / "data" / "cifar-10-batches-bin") in succeed(capfd, "data", "cifar10")
