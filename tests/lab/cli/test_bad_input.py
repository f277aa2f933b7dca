"""What is wrong gets exit code 2 and one clear sentence, and nothing is written."""

import json
import shutil

import pytest
from lab.cli.commands import refuse, succeed
from lab.data.published import write_cifar
from lab.train.runs import tiny_config

from steadeq.lab.run.folder import RunFolder

# Arguments, and words of the sentence. What the parser of options says is in test_arguments.py, and what each class
# refuses in lab/recipes/test_serialization.py.
REFUSED = [
    # Names that are misspelled
    ("trian synthetic", ["Did you mean 'train'"]),
    ("qqqq", ["`steadeq --help`"]),
    ("train sythetic", ["Did you mean 'synthetic'"]),
    ("train xyzzy", ["`steadeq recipes`"]),
    ("train synthetic --optimiser.learning-rate 1", ["Did you mean '--optimizer.learning-rate'"]),
    ("train synthetic --rseume", ["Did you mean '--resume'"]),
    ("data cifar", ["Did you mean 'cifar10'"]),
    ("evaluate run --bugets 3", ["Did you mean '--budgets'"]),
    # Values that no run can have; those that no object can have are in test_refused_values.py
    ("train synthetic --optimizer.learning-rate 1e39", ["learning-rate"]),
    ("train synthetic --regularizer.weight 1e300", ["weight"]),
    ("train synthetic --loop.num-steps 18446744073709551616", ["num-steps"]),
    ("train synthetic --loop.seed " + "9" * 5000, ["seed"]),
    ("train synthetic --data.seed 99999999999999999999999", ["seed"]),
    ("train synthetic --log.spectrum-products 99999999999999", ["spectrum-products"]),
    ("train synthetic --solver.max-evals 99999999999999", ["max-evals"]),
    ("train synthetic --budget.high 99999999999999", ["high"]),
    ("train synthetic --warmup.depth 99999999999999", ["depth"]),
    # Values that do not fit each other, the data or the machine
    ("train synthetic --budget.low -9 --budget.high 1", ["budget.low is -9", "max_evals (6)"]),
    ("train synthetic --adjoint Shine", ["Broyden"]),
    ("train synthetic --loop.batch-size 5000", ["batch_size", "5000", "4096"]),
    ("train synthetic --loop.accumulate 3", ["batch_size", "accumulate", "3"]),
    ("train digits --model.image-channels 3", ["channels"]),
    ("train digits --model.num-classes 5", ["num_classes"]),
    ("train synthetic --loop.device tpu9", ["tpu9"]),
    ("train synthetic --loop.device cuda:99", ["cuda:99"]),
    ("train synthetic --loop.device mps", ["mps"]),
    ("train synthetic --loop.device meta", ["meta"]),
    # Models that cannot be
    ("train digits --model.channels 10", ["channels is 10", "groups"]),
    # Folders
    ("train", ["steadeq recipes"]),
    ("train --resume", ["--out"]),
    ("train synthetic --out", ["--out"]),
    ("train synthetic-jr --out run", ["run exists already", "--resume", "--out"]),
    ("train synthetic --out mine", ["mine exists already"]),
    ("train synthetic --out mine --resume", ["mine"]),
    ("train synthetic --out mine/thesis.txt", ["thesis.txt"]),
    ("train synthetic --out mine/thesis.txt/run", ["thesis.txt/run"]),
    ("train synthetic --out " + "x" * 300, ["xxx"]),
    ("train synthetic --out a\0b", ["zero byte"]),
    ("train " + "x" * 300 + ".py:f", ["xxx"]),
    ("train \udcff", ["There is no recipe"]),
    ("train synthetic-jr --out run --resume --regularizer.weight 7", ["regularizer.weight", "4.0", "7.0"]),
    ("train digits --out run --resume", ["synthetic-jr", "digits"]),
    ("evaluate mine", ["mine"]),
    ("evaluate nowhere", ["nowhere"]),
    ("evaluate " + "x" * 300, ["xxx"]),
    ("evaluate young", ["no checkpoint"]),
    ("diagnose nowhere", ["nowhere"]),
    ("report mine", ["mine"]),
    ("report mine/thesis.txt", ["thesis.txt"]),
    # Arguments of other commands
    ("evaluate", ["is not a run"]),
    ("evaluate run --step 7", ["7"]),
    ("report", ["RUNS"]),
    ("recipes stray", ["stray"]),
    ("demo --num-epochs 0", ["--num-epochs is 0"]),
    ("demo --jobs 0", ["--jobs is 0"]),
    ("demo --jobs 99999999", ["--jobs is 99999999"]),
    ("demo --num-seeds 1001", ["--num-seeds is 1001"]),
]


@pytest.fixture
def places(run, home):
    """A finished run, a run without checkpoints, and a folder of something else."""
    RunFolder.create(home / "young", tiny_config())
    (home / "mine").mkdir()
    (home / "mine" / "thesis.txt").write_text("years of work")


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[arguments[:80] for arguments, _ in REFUSED])
def test_what_makes_no_sense_is_refused_by_name(arguments, words, places, capfd):
    line = refuse(capfd, *arguments.split())
    assert all(word in line for word in words), line
    assert len(line) < 500


def test_sentences_suggest_nothing_that_would_not_help(places, capfd):
    assert "Did you mean" not in refuse(capfd, "train", "xyzzy")
    assert "--resume" not in refuse(capfd, "train", "synthetic", "--out", "mine")
    assert "does not exist" not in refuse(capfd, "evaluate", "mine/thesis.txt")
    refuse(capfd, "train", "synthetic", "--out", "")


def test_missing_data_says_where_it_was_looked_for_and_how_to_get_it(home, tmp_path, capfd):
    line = refuse(capfd, "train", "cifar10-mdeq-cpu")
    for word in (str(home / "data"), str(tmp_path / "cache" / "steadeq"), "cifar-10-batches-bin"):
        assert word in line
    assert "steadeq data cifar10" in line


# Runs that are damaged


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"{}", b"\xff\xfe\x00"],
    ids=["empty", "cut", "list", "no fields", "no text"],
)
def test_a_damaged_config_is_refused_by_name(content, home, capfd):
    (home / "young").mkdir()
    (home / "young" / "config.json").write_bytes(content)
    for command in ("evaluate young", "diagnose young", "report young", "train --resume --out young"):
        assert "young/config.json" in refuse(capfd, *command.split())


def edit_config(run, section, field, value):
    content = json.loads((run / "config.json").read_text())
    content[section][field] = value
    (run / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("command", "section", "field", "value", "expected"),
    [
        # Never right
        ("evaluate run", "model", "hidden", "fifty", "model.hidden is 'fifty'"),
        ("evaluate run", "model", "hiden", 3, "Did you mean 'hidden'"),
        ("evaluate run", "model", "class", "steadeq.models.toy:ToyDEQ.Confg", "'steadeq.models.toy:ToyDEQ.Config'"),
        ("evaluate run", "solver", "class", "steadeq.solvers.gmres:GMRES", "solver.class is 'steadeq.solvers.gmres"),
        ("evaluate run", "optimizer", "learning_rate", -1.0, "optimizer.learning_rate is -1.0"),
        ("evaluate run", "loop", "seed", 2**70, "loop.seed"),
        # Not those of the checkpoint
        ("evaluate run", "model", "hidden", 7, "model.hidden is 7 and was 50"),
        ("diagnose run", "data", "noise", 0.5, "data.noise is 0.5 and was 0.05"),
        ("train --resume --out run", "loop", "seed", 1, "loop.seed is 1 and was 0"),
        ("train --resume --out run", "solver", "max_evals", 7, "solver.max_evals is 7 and was 6"),
    ],
)
def test_a_config_that_was_edited_is_refused_by_name(command, section, field, value, expected, run, capfd):
    edit_config(run, section, field, value)
    assert expected in refuse(capfd, *command.split())


def test_what_changes_no_number_may_change(run, capfd):
    edit_config(run, "loop", "device", "cpu")
    edit_config(run, "log", "keep_checkpoints", 5)
    succeed(capfd, "evaluate", "run", "--budgets", "2")
    succeed(capfd, "train", "--resume", "--out", "run")


def test_samples_that_are_not_those_of_the_checkpoint_are_refused(home, capfd):
    folder = home / "data" / "cifar-10-batches-bin"
    write_cifar(folder)
    options = "--data.num-train 12 --data.num-validation 4 --loop.num-steps 2 --loop.batch-size 4 --log.every 1"
    succeed(capfd, "train", "cifar10-resnet-cpu", "--out", "run", *options.split())
    succeed(capfd, "evaluate", "run")
    write_cifar(folder, seed=1)
    assert "the test samples of Cifar10 have changed" in refuse(capfd, "evaluate", "run")
    shutil.rmtree("run/checkpoints/step-00000002")
    shutil.rmtree(folder)
    assert "cifar-10-batches-bin" in refuse(capfd, "train", "--resume", "--out", "run")


def test_damaged_checkpoints_are_one_error(run, capfd):
    for folder in (run / "checkpoints").iterdir():
        (folder / "model.safetensors").write_bytes(b"")
    for command in ("evaluate run", "diagnose run", "train --resume --out run"):
        line = refuse(capfd, *command.split(), code=1)
        assert line.startswith("steadeq: No checkpoint in run/checkpoints can be used")
