"""Runs that are made longer, and runs that start from the weights of others."""

import shutil
from pathlib import Path

import pytest
import torch
from lab.train.runs import Crash, assert_same, latest, raise_at

from steadeq import load_model
from steadeq.lab.cli.main import main
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord

# With a rate that does not depend on the length of the run, a longer run begins as the shorter one.
CONSTANT = "--optimizer.learning-rate 1e-3 --optimizer.min-learning-rate 1e-3"
SMALL = f"--loop.batch-size 16 --log.eval-every 4 --log.spectrum-samples 0 {CONSTANT}"


def train(arguments: str) -> int:
    return main(["train", *arguments.split()])


def weights(path) -> dict[str, torch.Tensor]:
    return latest(Path(path)).weights


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of twelve steps, and one of its first six."""
    folder = tmp_path_factory.mktemp("made")
    for name, num_steps in (("whole", 12), ("parts", 6)):
        assert train(f"synthetic-jr --out {folder / name} --loop.num-steps {num_steps} {SMALL}") == 0
    return folder


@pytest.fixture(autouse=True)
def folder(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


@pytest.mark.parametrize("place", [None, (RunFolder, "replace_config"), (torch.optim.Adam, "step")])
def test_a_run_that_is_made_longer_even_after_a_crash_ends_as_one_that_was_as_long_from_the_start(
    place, folder, monkeypatch
):
    assert RunRecord.read(folder / "parts").is_finished
    if place is not None:
        with monkeypatch.context() as patch:
            raise_at(patch, [place], 1, Crash())
            with pytest.raises(Crash):
                train("--resume --out parts --loop.num-steps 12")
    assert train("--resume --out parts --loop.num-steps 12") == 0
    record = RunRecord.read(folder / "parts")
    assert (record.is_finished, record.step, record.config.loop.num_steps) == (True, 12, 12)
    assert [line.step for line in record.training] == list(range(1, 13))
    assert_same(weights("parts"), weights("whole"))
    # It can be opened and resumed as any other.
    load_model("parts")
    assert train("--resume --out parts") == 0


def test_a_run_is_not_made_shorter_than_it_is(capfd):
    assert train("--resume --out parts --loop.num-steps 4") == 2
    assert "is of step 6, beyond the last step of the run (4)" in capfd.readouterr().err
    assert RunFolder(Path("parts")).config().loop.num_steps == 6


def test_a_run_starts_from_the_weights_of_another_run_or_model(folder):
    load_model("parts").save_pretrained("model")
    for source in ("parts", "model"):
        # Of a rate this small, nothing is left in float32.
        still = "--loop.num-steps 1 --loop.batch-size 16 --optimizer.learning-rate 1e-30"
        assert train(f"synthetic --out from-{source} --loop.init-from {source} {still}") == 0
        assert_same(weights(f"from-{source}"), weights("parts"))
    # What it started from may go once there is a checkpoint.
    (folder / "parts").rename(folder / "gone")
    assert train("--resume --out from-parts --loop.num-steps 2") == 0


def test_weights_of_another_network_are_refused_before_a_folder_is_made(folder, capfd):
    for source, reason in (("parts", "another model"), ("nowhere", "nowhere")):
        assert train(f"digits --out second --loop.init-from {source}") == 2
        assert reason in capfd.readouterr().err
    assert not (folder / "second").exists()
