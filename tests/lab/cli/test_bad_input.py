"""What is wrong gets exit code 2 and one clear sentence, and nothing is written."""

import contextlib
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from lab.train.runs import snapshot, tiny_config, train

from steadeq.lab.cli.main import main
from steadeq.lab.run.folder import RunFolder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    train(tiny_config(), path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, without any data in sight."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STEADEQ_DATA", raising=False)
    return work


@pytest.fixture
def run(finished, folder):
    return Path(shutil.copytree(finished, folder / "run"))


def refuse(capfd, *arguments: str, code: int = 2) -> str:
    """Check that a command is refused with one sentence, that nothing is written, and return the sentence."""
    before = snapshot(Path.cwd())
    capfd.readouterr()
    assert main(arguments) == code
    output, errors = capfd.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    assert line.startswith("steadeq: ")
    assert "Traceback" not in line
    assert not re.search(r"-{4,}|─{2,}|[│╭╮╰╯]", line), "a box is not a sentence"
    assert snapshot(Path.cwd()) == before
    return line


# Names


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("trian synthetic", "'train'"),
        ("evalaute run", "'evaluate'"),
        ("train sythetic", "'synthetic'"),
        ("train digit-jr", "'digits-jr'"),
        ("train synthetic --loop.num-stepz 3", "--loop.num-steps"),
        ("train synthetic --optimiser.learning-rate 1", "--optimizer.learning-rate"),
        ("train synthetic --optimizer SDG", "'SGD'"),
        ("train synthetic --solver andersen", "'Anderson'"),
        ("train synthetic --regularizer.wieght=2", "--regularizer.weight"),
        ("train synthetic --model.hiden 3", "--model.hidden"),
        ("train synthetic --rseume", "--resume"),
        ("data cifar", "'cifar10'"),
        ("evaluate run --bugets 3", "--budgets"),
    ],
)
def test_a_misspelled_name_is_refused_and_the_nearest_suggested(arguments, expected, folder, capfd):
    line = refuse(capfd, *arguments.split())
    assert f"Did you mean {expected}" in line.replace("'--", "--").replace("' ", "'")


def test_a_name_like_no_other_is_refused_without_a_guess(folder, capfd):
    assert "Did you mean" not in refuse(capfd, "train", "xyzzy")
    assert "`steadeq recipes`" in refuse(capfd, "train", "xyzzy")
    assert "`steadeq --help`" in refuse(capfd, "qqqq")


# Values

WRONG = {
    "a word for a number": ("synthetic --loop.num-steps abc", ["--loop.num-steps", "abc"]),
    "a fraction for a count": ("synthetic --loop.batch-size 3.5", ["--loop.batch-size", "3.5"]),
    "a word for a real number": ("synthetic --optimizer.learning-rate fast", ["--optimizer.learning-rate", "fast"]),
    "no value": ("synthetic --loop.num-steps", ["--loop.num-steps"]),
    "one value for a pair": ("synthetic --optimizer.betas 1", ["--optimizer.betas"]),
    "an unknown class": ("synthetic --optimizer adamm", ["--optimizer", "adamm", "AdamW", "SGD"]),
    "an unknown choice": ("synthetic --budget.when never", ["--budget.when", "never", "always", "penalized"]),
    "a linear solver for a fixed point": ("synthetic --solver GMRES", ["--solver", "GMRES", "Anderson"]),
    "a value for a flag": ("synthetic --loop.compile maybe", ["maybe"]),
    "a stray word": ("synthetic stray", ["stray"]),
    "no folder": ("synthetic --out", ["--out"]),
    "zero steps": ("synthetic --loop.num-steps 0", ["--loop.num-steps is 0"]),
    "a negative rate": ("synthetic --optimizer.learning-rate -1", ["--optimizer.learning-rate is -1"]),
    "a rate that is no number": ("synthetic --optimizer.learning-rate nan", ["learning-rate", "nan"]),
    "an infinite weight": ("synthetic --regularizer.weight inf", ["weight", "inf"]),
    "a probability above one": ("synthetic --regularizer.probability 1.5", ["probability", "1.5"]),
    "a budget of nothing": ("synthetic --solver.max-evals 0", ["--solver.max-evals is 0"]),
    "an empty range": ("synthetic --budget.low 3 --budget.high 1", ["budget.low is 3", "high (1)"]),
    "a range below one": ("synthetic --budget.low -9 --budget.high 1", ["budget.low is -9", "max_evals (6)"]),
    "betas out of range": ("synthetic --optimizer.betas 0.9 1.0", ["betas"]),
    "a decay of one": ("synthetic --loop.ema-decay 1", ["--loop.ema-decay is"]),
    "no checkpoint kept": ("synthetic --log.keep-checkpoints 0", ["--log.keep-checkpoints is"]),
    "a batch larger than the data": ("synthetic --loop.batch-size 5000", ["batch_size", "5000", "4096"]),
    "parts that do not fit": ("synthetic --loop.accumulate 3", ["batch_size", "accumulate", "3"]),
    "a stop without an end": (
        "synthetic --regularizer.schedule StopAfter",
        ["regularizer.schedule.step is None", "epoch", "one of them must be given"],
    ),
    "a ramp without an end": ("synthetic --regularizer.schedule Linear", ["regularizer.schedule.end", "missing"]),
    "a model that cannot be": ("digits --model.channels 10", ["channels is 10", "groups"]),
    "an unknown device": ("synthetic --loop.device tpu9", ["tpu9"]),
    "a device that is not here": ("synthetic --loop.device cuda:99", ["cuda:99"]),
    "a device of another machine": ("synthetic --loop.device mps", ["mps"]),
    "a device without numbers": ("synthetic --loop.device meta", ["meta"]),
    "no width": ("synthetic --model.hidden 0", ["hidden"]),
    "a negative width": ("synthetic --model.hidden -3", ["model"]),
    "no groups": ("digits --model.groups 0", ["groups"]),
    "no stride": ("digits --model.stride 0", ["stride"]),
    "another number of channels than the data": ("digits --model.image-channels 3", ["channels"]),
    "fewer classes than the data": ("digits --model.num-classes 5", ["num_classes"]),
    "nesterov without momentum": (
        "synthetic --optimizer SGD --optimizer.nesterov --optimizer.momentum 0",
        ["momentum"],
    ),
    "a damping above one": ("synthetic --adjoint Phantom --adjoint.damping 7", ["damping"]),
    "shine without broyden": ("synthetic --adjoint Shine", ["broyden"]),
    "a seed too large": ("synthetic --data.seed 99999999999999999999999", ["seed"]),
    "a negative noise": ("synthetic --data.noise -1", ["noise"]),
    "a noise that is no number": ("synthetic --data.noise nan", ["noise"]),
    "an infinite range of inputs": ("synthetic --data.radius inf", ["radius"]),
    "an increment that is no number": (
        "synthetic --regularizer.schedule Increments --regularizer.schedule.increment nan "
        "--regularizer.schedule.every 3",
        ["regularizer.schedule.increment"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_makes_no_sense_is_refused_by_name(name, folder, capfd):
    arguments, words = WRONG[name]
    # Short, should it be accepted against expectation.
    short = [] if "num-steps" in arguments else ["--loop.num-steps", "2", "--log.spectrum-samples", "0"]
    line = refuse(capfd, "train", *arguments.split(), *short)
    for word in words:
        assert word.lower() in line.lower()


@pytest.mark.parametrize(
    "arguments", ["--loop.num-steps abc", "--optimizer adamm", "--budget.low 3 --budget.high 1", "stray"]
)
def test_the_sentence_is_the_same_where_boxes_cannot_be_drawn(arguments, folder, capfd):
    expected = refuse(capfd, "train", "synthetic", *arguments.split())
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        assert main(["train", "synthetic", *arguments.split()]) == 2
    assert errors.getvalue().strip() == expected


# What is needed and missing, or there and in the way


def test_missing_data_says_where_it_was_looked_for_and_how_to_get_it(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path / "here"))
    line = refuse(capfd, "train", "cifar10-mdeq-cpu")
    for word in (str(tmp_path / "here"), "data", str(tmp_path / "cache" / "steadeq"), "cifar-10-batches-bin"):
        assert word in line
    assert "steadeq data cifar10" in line


def test_no_recipe_says_where_they_are_listed(folder, capfd):
    assert "steadeq recipes" in refuse(capfd, "train")
    assert "--out" in refuse(capfd, "train", "--resume")


def test_a_run_that_exists_is_left_alone(run, capfd):
    line = refuse(capfd, "train", "synthetic-jr", "--out", "run")
    assert "run exists already" in line
    assert "--resume" in line
    assert "--out" in line


def test_a_folder_with_other_things_is_left_alone(folder, capfd):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("years of work")
    line = refuse(capfd, "train", "synthetic", "--out", "mine")
    assert "mine exists already" in line
    assert "--resume" not in line
    assert "mine" in refuse(capfd, "train", "synthetic", "--out", "mine", "--resume")
    assert "thesis.txt" in refuse(capfd, "train", "synthetic", "--out", "mine/thesis.txt")


def test_an_empty_name_of_a_folder_is_refused(folder, capfd):
    refuse(capfd, "train", "synthetic", "--out", "", "--loop.num-steps", "2", "--log.spectrum-samples", "0")


def test_resuming_what_is_not_there_is_refused(folder, capfd):
    assert "nowhere" in refuse(capfd, "train", "--resume", "--out", "nowhere")


def test_resuming_with_a_changed_field_is_refused_by_name(run, capfd):
    line = refuse(capfd, "train", "synthetic-jr", "--out", "run", "--resume", "--regularizer.weight", "7")
    for word in ("regularizer.weight", "4.0", "7.0"):
        assert word in line
    assert "loop.seed" in refuse(capfd, "train", "--resume", "--out", "run", "--loop.seed", "1")


def test_resuming_as_another_recipe_is_refused(run, capfd):
    line = refuse(capfd, "train", "digits", "--out", "run", "--resume")
    assert "synthetic-jr" in line
    assert "digits" in line


# Runs that are none, or are damaged

READERS = ("evaluate", "diagnose", "report")


@pytest.mark.parametrize("command", READERS)
def test_a_folder_that_is_no_run_is_refused(command, folder, capfd):
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    assert "empty" in refuse(capfd, command, "empty")
    assert "nowhere" in refuse(capfd, command, "nowhere")
    assert "does not exist" not in refuse(capfd, command, "file")


@pytest.mark.parametrize("command", ["evaluate", "diagnose"])
def test_a_run_without_a_checkpoint_is_refused(command, folder, capfd):
    RunFolder.create(folder / "young", tiny_config())
    assert "no checkpoint" in refuse(capfd, command, "young")


@pytest.mark.parametrize("command", ["evaluate young", "diagnose young", "report young", "train --resume --out young"])
@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", "{}", "null", '{"recipe": 3}', "\x00\x00"],
    ids=["empty", "cut", "list", "no fields", "null", "type", "zeros"],
)
def test_a_damaged_config_is_refused_by_name(command, content, folder, capfd):
    (folder / "young").mkdir()
    (folder / "young" / "config.json").write_text(content)
    assert "young/config.json" in refuse(capfd, *command.split())


def test_a_config_that_is_no_text_is_refused_by_name(run, capfd):
    (run / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "run/config.json" in refuse(capfd, "evaluate", "run")


@pytest.mark.parametrize(
    ("section", "field", "value", "expected"),
    [
        ("model", "hidden", "fifty", "model.hidden is 'fifty'"),
        ("model", "hidden", True, "model.hidden is True"),
        ("model", "hiden", 3, "Did you mean 'hidden'"),
        ("model", "class", "steadeq.models.toy:ToyDEQ.Confg", "Did you mean 'steadeq.models.toy:ToyDEQ.Config'"),
        ("loop", "num_steps", 2.5, "loop.num_steps is 2.5"),
        ("loop", "compile", 1, "loop.compile is 1"),
        ("optimizer", "betas", [1], "optimizer.betas is [1]"),
        ("budget", "when", "never", "budget.when is 'never'"),
        ("solver", "class", "steadeq.solvers.gmres:GMRES", "solver.class is 'steadeq.solvers.gmres:GMRES'"),
        ("optimizer", "learning_rate", -1.0, "optimizer.learning_rate is -1.0"),
    ],
)
def test_a_wrong_field_of_a_config_is_refused_by_name(section, field, value, expected, run, capfd):
    content = json.loads((run / "config.json").read_text())
    content[section][field] = value
    (run / "config.json").write_text(json.dumps(content))
    assert expected in refuse(capfd, "evaluate", "run")


@pytest.mark.parametrize("command", ["evaluate run", "diagnose run", "train --resume --out run"])
@pytest.mark.parametrize(
    ("section", "field", "value", "old"),
    [("model", "hidden", 7, 50), ("data", "noise", 0.5, 0.05), ("loop", "seed", 1, 0), ("solver", "max_evals", 7, 6)],
)
def test_a_config_that_is_not_that_of_the_checkpoint_is_refused(command, section, field, value, old, run, capfd):
    content = json.loads((run / "config.json").read_text())
    content[section][field] = value
    (run / "config.json").write_text(json.dumps(content))
    assert f"{section}.{field} is {value} and was {old}" in refuse(capfd, *command.split())


@pytest.mark.parametrize(("section", "field", "value"), [("loop", "device", "cpu"), ("log", "keep_checkpoints", 5)])
def test_what_changes_no_number_may_change(section, field, value, run, capfd):
    content = json.loads((run / "config.json").read_text())
    content[section][field] = value
    (run / "config.json").write_text(json.dumps(content))
    assert main(["evaluate", "run", "--budgets", "2"]) == 0
    assert main(["train", "--resume", "--out", "run"]) == 0


def test_samples_that_are_not_those_of_the_checkpoint_are_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)

    def write(seed):
        generator = torch.Generator().manual_seed(seed)
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            pixels = torch.randint(256, (4, 3072), generator=generator)
            records = torch.cat([torch.arange(4)[:, None], pixels], dim=1).to(torch.uint8)
            (folder / f"{name}.bin").write_bytes(bytes(records.flatten().tolist()))

    write(0)
    options = "--data.num-train 12 --data.num-validation 4 --loop.num-steps 2 --loop.batch-size 4 --log.every 1"
    assert main(["train", "cifar10-resnet-cpu", "--out", "run", *options.split()]) == 0
    assert main(["evaluate", "run"]) == 0
    write(1)
    assert "the test samples of Cifar10 have changed" in refuse(capfd, "evaluate", "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000002")
    shutil.rmtree(folder)
    assert "cifar-10-batches-bin" in refuse(capfd, "train", "--resume", "--out", "run")


def test_a_checkpoint_of_another_optimizer_is_refused(run, capfd):
    shutil.rmtree(run / "checkpoints" / "step-00000012")  # so that there is something left to train
    content = json.loads((run / "config.json").read_text())
    content["optimizer"] = {"class": "steadeq.lab.optimizers:SGD"}
    (run / "config.json").write_text(json.dumps(content))
    assert "optimizer" in refuse(capfd, "train", "--resume", "--out", "run")


@pytest.mark.parametrize("command", ["evaluate run", "diagnose run", "train --resume --out run"])
def test_damaged_checkpoints_are_one_error(command, run, capfd):
    for folder in (run / "checkpoints").iterdir():
        (folder / "model.safetensors").write_bytes(b"")
    before = snapshot(run)
    assert main(command.split()) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("steadeq: No checkpoint in run/checkpoints can be used")
    assert snapshot(run) == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("evaluate run --budgets 0", "budgets"),
        ("evaluate run --budgets 1 x", "--budgets"),
        ("evaluate run --split train", "train"),
        ("evaluate run --step 7", "7"),
        ("evaluate run --step -1", "-1"),
        ("evaluate run --device mps", "mps"),
        ("evaluate", "run"),
        ("diagnose run --num-samples 0", "--num-samples"),
        ("diagnose run --tol -1", "tol"),
        ("diagnose run --max-products 0", "--max-products"),
        ("diagnose run --step 7", "7"),
        ("report", "runs"),
        ("recipes stray", "stray"),
        ("data digits stray", "stray"),
    ],
)
def test_a_wrong_argument_of_another_command_is_refused(arguments, word, run, capfd):
    assert word in refuse(capfd, *arguments.split())


def test_an_environment_that_makes_no_sense_is_refused(folder, monkeypatch, capfd):
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert "WORLD_SIZE" in refuse(capfd, "train", "synthetic")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    assert "RANK" in refuse(capfd, "train", "synthetic")
