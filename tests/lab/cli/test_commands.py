"""What the commands print and write when all is well."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab.train.runs import (
    Crash,
    assert_same,
    environment,
    events_of,
    final_state,
    metrics_of,
    snapshot,
    tiny_config,
    train,
    train_until,
)

from steadeq.lab import recipes
from steadeq.lab.cli.main import COMMANDS, main
from steadeq.lab.cli.recipes import listed
from steadeq.lab.run.folder import RunFolder

SHORT = ("--loop.num-steps", "6", "--log.eval-every", "3", "--log.spectrum-samples", "0")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    train(tiny_config(loop={"ema_decay": 0.9}), path)
    return path


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def succeed(capfd, *arguments: str) -> str:
    capfd.readouterr()
    assert main(arguments) == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    return output


def numbers(text: str) -> list[list[str]]:
    """Return the cells of a printed table's rows."""
    return [line.split() for line in text.splitlines() if re.match(r"\s*\d", line)]


# Help


def test_help_and_version_do_not_import_torch():
    script = (
        "import sys; from steadeq.lab.cli.main import main; "
        "assert main(['--help']) == main(['--version']) == main([]) == 0; "
        "assert main(['trian']) == 2; "
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich', 'safetensors'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert all(command in result.stdout for command in COMMANDS)
    assert "steadeq 0." in result.stdout


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command, capfd):
    assert main([command, "--help"]) == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    assert f"steadeq {command}" in output


@pytest.mark.parametrize("recipe", recipes.names())
def test_the_help_of_a_recipe_lists_every_section_with_its_values(recipe, capfd):
    assert main(["train", recipe, "--help"]) == 0
    output = capfd.readouterr().out
    for option in ("--out", "--resume", "--profile", "--loop.num-epochs", "--regularizer.weight"):
        assert option in output
    assert "--solver.max-evals" in output or "--solver.num-steps" in output


# Train


def test_train_leaves_a_complete_run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    output = succeed(capfd, "train", "synthetic-jr", *SHORT)
    path = tmp_path / "runs" / "synthetic-jr"
    assert {entry.name for entry in path.iterdir()} >= {
        "config.json",
        "metrics.jsonl",
        "environment.json",
        "checkpoints",
    }
    config = RunFolder(path).config()
    assert config.recipe == "synthetic-jr"
    assert config.loop.num_steps == 6
    assert config.regularizer.weight == 4.0
    records = metrics_of(path)
    assert [(r["event"], r["step"]) for r in records if r["event"] == "evaluation"] == [
        ("evaluation", 3),
        ("evaluation", 6),
    ]
    assert [r["step"] for r in records if r["event"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert records[-1] == {"event": "finished", "step": 6}
    assert "validation mse" in output.splitlines()[-1]
    assert f"{records[-2]['mse']:.4g}" in output.splitlines()[-1]
    (session,) = json.loads((path / "environment.json").read_text())
    assert session["processes"] == 1
    assert session["device"] == "cpu"


def test_what_the_paper_plots_is_recorded(tmp_path, capfd):
    succeed(
        capfd,
        "train",
        "digits-jr",
        "--out",
        str(tmp_path / "run"),
        "--loop.num-steps",
        "2",
        "--regularizer.probability",
        "1",
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "train"]
    for name in (
        "loss",
        "accuracy",
        "forward_residual",
        "backward_residual",
        "forward_evals",
        "backward_evals",
        "jacobian_norm",
        "regularizer_weight",
        "learning_rate",
        "grad_norm",
        "seconds",
        "memory_mb",
    ):
        assert all(isinstance(line[name], float) for line in steps), name
    (evaluation,) = (line for line in lines if line["event"] == "evaluation")
    for name in ("loss", "accuracy", "forward_residual", "forward_evals", "jacobian_norm", "spectral_radius"):
        assert isinstance(evaluation[name], float), name


def test_a_run_may_begin_in_an_empty_folder(tmp_path, capfd):
    succeed(capfd, "train", "synthetic", "--out", str(tmp_path), *SHORT)
    assert RunFolder(tmp_path).checkpoints().steps() == [6]


def test_resuming_a_run_that_is_not_there_begins_it(tmp_path, capfd):
    path = tmp_path / "run"
    assert "Starting anew" in succeed(capfd, "train", "synthetic", "--out", str(path), "--resume", *SHORT)
    succeed(capfd, "train", "synthetic", "--out", str(tmp_path / "other"), *SHORT)
    assert_same(final_state(path), final_state(tmp_path / "other"))


def test_resuming_a_finished_run_is_quiet_and_changes_nothing(run, capfd):
    before = snapshot(run)
    mse = events_of(run, "evaluation")[-1]["mse"]
    for arguments in (["synthetic-jr"], []):
        output = succeed(capfd, "train", *arguments, "--resume", "--out", "run")
        assert f"validation mse {mse:.4g}" in output
        assert snapshot(run) == before


def test_resuming_with_the_same_fields_is_allowed(run, capfd):
    succeed(
        capfd, "train", "synthetic-jr", "--out", "run", "--resume", "--regularizer.weight", "4", "--loop.batch-size=16"
    )


def test_profile_shares_add_up_to_all_of_the_time(tmp_path, capfd):
    plain = tmp_path / "plain"
    succeed(capfd, "train", "synthetic-jr", "--out", str(plain), *SHORT)
    output = succeed(capfd, "train", "synthetic-jr", "--out", str(tmp_path / "run"), "--profile", *SHORT)
    shares = [float(share) for share in re.findall(r"([\d.-]+)%", output)]
    assert len(shares) == 8
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert min(shares) >= 0
    # Watching changes nothing.
    assert_same(final_state(tmp_path / "run"), final_state(plain))


def test_tensorboard_events_are_written_when_asked_for(tmp_path, capfd):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = tmp_path / "run"
    succeed(capfd, "train", "synthetic-jr", "--out", str(path), "--log.tensorboard", *SHORT)
    events = event_accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    records = metrics_of(path)
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses == pytest.approx({r["step"]: r["loss"] for r in records if r["event"] == "train"})
    assert [event.step for event in events.Scalars("evaluation/mse")] == [3, 6]


def test_tensorboard_shows_each_step_of_a_resumed_run_once(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config, path = tiny_config(log={"tensorboard": True}), tmp_path / "run"
    with pytest.raises(Crash):
        train_until(config, path, crash_at=7)
    train(config, path)
    events = event_accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 13))


def test_no_tensorboard_events_are_written_by_default(run):
    assert not list(run.rglob("*tfevents*"))


# Evaluate


def test_evaluate_prints_and_writes_the_same_numbers(run, capfd):
    output = succeed(capfd, "evaluate", "run", "--budgets", "1", "3", "6")
    result = json.loads((run / "evaluation.json").read_text())
    rows = list(csv.DictReader((run / "evaluation.csv").read_text().splitlines()))
    assert [row["max_evals"] for row in result["rows"]] == [1, 3, 6]
    assert result["split"] == "test"
    assert result["metric"] == "mse"
    assert result["higher_is_better"] is False
    assert result["step"] == 12
    assert [{name: float(value) for name, value in row.items()} for row in rows] == result["rows"]
    printed = numbers(output)
    assert [int(cells[0]) for cells in printed] == [1, 3, 6]
    for cells, row in zip(printed, result["rows"], strict=True):
        assert cells[1] == f"{row['mse']:.4g}"
        assert cells[3] == f"{row['forward_residual']:.2e}"
        assert row["forward_evals"] <= row["max_evals"]
    assert "evaluation.json" in output
    assert "evaluation.csv" in output


def test_evaluate_goes_from_one_evaluation_to_the_budget_of_the_run(run, capfd):
    succeed(capfd, "evaluate", "run")
    rows = json.loads((run / "evaluation.json").read_text())["rows"]
    assert [row["max_evals"] for row in rows] == [1, 2, 3, 4, 5, 6]
    residuals = [row["forward_residual"] for row in rows]
    assert residuals == sorted(residuals, reverse=True)


def test_evaluate_agrees_with_the_last_evaluation_of_training(run, capfd):
    # The averaged weights included.
    succeed(capfd, "evaluate", "run", "--split", "validation", "--budgets", "6")
    (row,) = json.loads((run / "evaluation.json").read_text())["rows"]
    last = events_of(run, "evaluation")[-1]
    for name in ("loss", "mse", "forward_residual", "forward_evals", "converged"):
        assert row[name] == last[name]


def test_evaluate_takes_the_checkpoint_of_a_step(run, capfd):
    succeed(capfd, "evaluate", "run", "--step", "8", "--budgets", "6")
    eighth = json.loads((run / "evaluation.json").read_text())
    succeed(capfd, "evaluate", "run", "--budgets", "6")
    last = json.loads((run / "evaluation.json").read_text())
    assert (eighth["step"], last["step"]) == (8, 12)
    assert eighth["rows"][0]["mse"] != last["rows"][0]["mse"]


def test_evaluate_leaves_the_training_alone(run, capfd):
    before = snapshot(run)
    succeed(capfd, "evaluate", "run")
    after = snapshot(run)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"evaluation.json", "evaluation.csv"}


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


def test_recipes_can_be_filtered_by_words_and_scale(capfd):
    def names(*arguments):
        return {line.split()[0] for line in succeed(capfd, "recipes", *arguments).splitlines() if " cpu " in line}

    assert names() == {name for name in recipes.names() if recipes.get(name).scale == "cpu"}
    assert {"digits-jr", "digits-vit-jr"} <= names("digits", "jr") < names("digits")
    assert names("digits", "vit", "jr") == {"digits-vit-jr"}
    assert names("--scale", "paper") == set()
    assert names("DIGITS", "--scale", "cpu") == names("digits")
    assert main(["recipes", "digits", "--scale", "day"]) == 2
    assert "No recipe at the scale day matches the words 'digits'" in capfd.readouterr().err


def test_the_list_of_recipes_comes_without_importing_torch():
    program = "import sys; from steadeq.lab.cli.main import main; main(['recipes']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def test_data_says_what_is_there_and_how_to_get_the_rest(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert re.search(r"cifar10\s+missing", succeed(capfd, "data"))
    assert "https://" in succeed(capfd, "data", "cifar10")
    (tmp_path / "mine" / "cifar-10-batches-bin").mkdir(parents=True)
    assert str(tmp_path / "mine" / "cifar-10-batches-bin") in succeed(capfd, "data", "cifar10")
    for name in ("digits", "prefix-sums", "addition"):
        assert "part of the package" in succeed(capfd, "data", name)


# Terminals and pipes


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_gets_the_words_all_the_same(encoding, run, monkeypatch):
    for arguments in (
        ["train", "synthetic", "--help"],
        ["diagnose", "run", "--num-samples", "2", "--max-products", "4"],
    ):
        content = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding=encoding))
            assert main(arguments) == 0
            sys.stdout.flush()
            assert arguments[0].encode() in content.getvalue() or b"spectral" in content.getvalue()


def test_a_reader_that_goes_away_is_no_error_worth_a_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "steadeq", "--help"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=300)
    assert b"Traceback" not in errors
    assert b"Exception ignored" not in errors
