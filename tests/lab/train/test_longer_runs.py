"""Runs that are made longer, and runs that start from the weights of others."""

import signal
import subprocess
import sys

import pytest
import torch
from lab.train.runs import Crash, raise_at

from steadeq import load_model
from steadeq.lab.cli.main import main
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord

# With a rate that does not depend on the length of the run, a longer run begins as the shorter one.
CONSTANT = "--optimizer.learning-rate 1e-3 --optimizer.min-learning-rate 1e-3 --log.spectrum-samples 0"
SMALL = f"--loop.batch-size 16 --log.eval-every 4 {CONSTANT}"


def train(arguments: str) -> int:
    return main(["train", *arguments.split()])


def weights(path) -> dict[str, torch.Tensor]:
    checkpoint = RunFolder(path).checkpoints().load_latest()
    assert checkpoint is not None
    return checkpoint.weights


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_that_is_made_longer_ends_as_one_that_was_as_long_from_the_start(folder):
    assert train(f"synthetic-jr --out whole --loop.num-steps 12 {SMALL}") == 0
    assert train(f"synthetic-jr --out parts --loop.num-steps 6 {SMALL}") == 0
    assert RunRecord.read(folder / "parts").is_finished
    assert train("--resume --out parts --loop.num-steps 12") == 0
    record = RunRecord.read(folder / "parts")
    assert (record.is_finished, record.step, record.config.loop.num_steps) == (True, 12, 12)
    assert [line.step for line in record.training] == list(range(1, 13))
    whole, parts = weights(folder / "whole"), weights(folder / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    # It can be opened and resumed as any other.
    load_model(folder / "parts")
    assert train("--resume --out parts") == 0


@pytest.mark.parametrize("place", [(RunFolder, "replace_config"), (torch.optim.Adam, "step")])
def test_a_crash_while_a_run_is_made_longer_leaves_no_trace(place, folder, monkeypatch):
    assert train(f"synthetic-jr --out whole --loop.num-steps 12 {SMALL}") == 0
    assert train(f"synthetic-jr --out parts --loop.num-steps 6 {SMALL}") == 0
    with monkeypatch.context() as patch:
        raise_at(patch, [place], 1, Crash())
        with pytest.raises(Crash):
            train("--resume --out parts --loop.num-steps 12")
    assert train("--resume --out parts --loop.num-steps 12") == 0
    whole, parts = weights(folder / "whole"), weights(folder / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_run_is_not_made_shorter_than_it_is(folder, capfd):
    assert train(f"synthetic-jr --out run --loop.num-steps 6 {SMALL}") == 0
    assert train("--resume --out run --loop.num-steps 4") == 2
    assert "is of step 6, beyond the last step of the run (4)" in capfd.readouterr().err
    assert RunFolder(folder / "run").config().loop.num_steps == 6


def test_a_run_starts_from_the_weights_of_another_run_or_model(folder, capfd):
    assert train(f"synthetic-jr --out first --loop.num-steps 6 {SMALL}") == 0
    load_model(folder / "first").save_pretrained(folder / "model")
    for source in ("first", "model"):
        # Of a rate this small, nothing is left in float32.
        still = "--loop.num-steps 1 --loop.batch-size 16 --optimizer.learning-rate 1e-30"
        assert train(f"synthetic --out from-{source} --loop.init-from {source} {still}") == 0
        found, expected = weights(folder / f"from-{source}"), weights(folder / "first")
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    # What it started from may go once there is a checkpoint.
    (folder / "first").rename(folder / "gone")
    assert train("--resume --out from-first --loop.num-steps 2") == 0


def test_weights_of_another_network_are_refused_before_a_folder_is_made(folder, capfd):
    assert train(f"synthetic-jr --out first --loop.num-steps 2 {SMALL}") == 0
    assert train("digits --out second --loop.init-from first") == 2
    assert "another model" in capfd.readouterr().err
    assert train("digits --out second --loop.init-from nowhere") == 2
    assert "nowhere" in capfd.readouterr().err
    assert not (folder / "second").exists()


def test_an_interrupted_run_prints_the_command_that_goes_on_with_it(folder):
    # A name that a shell would split.
    path = folder / "my run"
    command = [sys.executable, "-m", "steadeq", "train", "synthetic", "--out", str(path), "--loop.num-steps", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "step" in line:
            break
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"To go on: steadeq train --resume --out '{path}'" in error
