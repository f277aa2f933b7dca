"""A run that was stopped, in whatever way and wherever, ends as one that never was."""

import os
import signal

import pytest
import torch
from lab.train.runs import (
    VARIANTS,
    Crash,
    assert_same,
    crash,
    each,
    final_state,
    latest,
    make_run,
    metrics_of,
    raise_at,
    signal_at_step,
    start,
    tiny_config,
    train,
    train_until,
)

from steadeq import ClosedLoop
from steadeq.lab.cli.main import main
from steadeq.lab.config import RandomBudget
from steadeq.lab.errors import Interrupted
from steadeq.lab.run.checkpoint import CheckpointFolder
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord
from steadeq.lab.train.display import Display
from steadeq.lab.train.evaluation import Evaluator

# All that has state at once.
RICH = {
    "log": {"every": 3},
    "solver": {"max_evals": 4},
    "budget": RandomBudget(low=-2, high=3),
    "regularizer": {"schedule": ClosedLoop(target=1e-4), "weight": 0.2, "probability": 0.7},
    "warmup": {"num_steps": 3, "depth": 3},
    "loop": {"ema_decay": 0.8, "accumulate": 2},
    "optimizer": {"max_grad_norm": 2.0, "warmup_steps": 4},
}


@pytest.fixture(scope="module")
def rich_ending(tmp_path_factory):
    return final_state(make_run(tmp_path_factory, tiny_config(**RICH)))


@pytest.mark.parametrize("variant", each(VARIANTS, "plain", "window", "closed-loop", "average", "sgd"))
def test_a_run_that_crashed_many_times_ends_like_one_that_never_did(variant, tmp_path, monkeypatch):
    config = tiny_config(**VARIANTS[variant])
    train(config, tmp_path / "whole")
    path = tmp_path / "broken"
    crash(config, path, at=3)  # before the first checkpoint
    crash(config, path, at=6)  # between two checkpoints
    with pytest.raises(Interrupted):
        train_until(config, path, stop_at=6)
    crash(config, path, at=8)  # the line of step 8 is written, its checkpoint is not
    with monkeypatch.context() as patch:  # in the middle of the evaluation of step 10
        raise_at(patch, [(Evaluator, "measure")], 1, Crash())
        with pytest.raises(Crash):
            train(config, path)
    crash(config, path, at=12)
    train(config, path)
    assert_same(final_state(path), final_state(tmp_path / "whole"))


@pytest.mark.parametrize("step", [6, 9])
def test_a_power_cut_costs_only_what_came_after_the_last_checkpoint(step, rich_ending, tmp_path):
    config, path, sizes, plain = tiny_config(**RICH), tmp_path / "run", {}, os.fsync

    def fsync(handle):
        plain(handle)
        sizes[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        crash(config, path, at=step)
    for file in path.rglob("*"):
        if file.is_file():
            # What no fsync has put on disk is lost.
            os.truncate(file, min(file.stat().st_size, sizes.get(file.stat().st_ino, 0)))
    assert latest(path).step == step // 4 * 4
    train(config, path)
    assert_same(final_state(path), rich_ending)


STOPS = [(step, crashes_soon) for crashes_soon in (False, True) for step in range(1, 12 if crashes_soon else 13)]


@pytest.mark.parametrize("stop", each(STOPS, (5, False), (11, False), (4, True), (11, True)), ids=str)
def test_a_request_to_stop_after_any_step_leaves_no_trace(stop, rich_ending, tmp_path, monkeypatch):
    (step, crashes_soon), config, path = stop, tiny_config(**RICH), tmp_path / "run"
    with pytest.raises(Interrupted, match=r"Stopped at step \d+ of 12"):
        train_until(config, path, stop_at=step)
    saved = RunFolder(path).checkpoints().steps()[-1]
    # It stops in an evaluation that is due, else at the end of the next step.
    assert saved == (step if step in (5, 10, 12) else step + 1)
    if crashes_soon:
        with monkeypatch.context() as patch:
            if saved == 12:
                raise_at(patch, [(CheckpointFolder, "save")], 1, Crash())
            crash(config, path, at=saved + 1)
    train(config, path)
    assert_same(final_state(path), rich_ending)


PLACES = {
    "step": (torch.optim.Adam, "step"),
    "after step": (Display, "advance"),
    "before checkpoint": (CheckpointFolder, "save"),
    "checkpoint": (torch, "save"),
    "evaluation": (Evaluator, "measure"),
}
CALLS = [(place, call) for place in PLACES for call in range(1, 13 if "step" in place else 4)]
QUICK = [(place, call) for place, call in CALLS if call in ((3, 8, 10) if "step" in place else (2,))]


@pytest.mark.parametrize("place_and_call", each(CALLS, *QUICK), ids=lambda pair: f"{pair[0]} {pair[1]}")
def test_a_crash_anywhere_leaves_no_trace(place_and_call, rich_ending, tmp_path, monkeypatch):
    (place, call), config = place_and_call, tiny_config(**RICH)
    with monkeypatch.context() as patch:
        raise_at(patch, [PLACES[place]], call, Crash())
        with pytest.raises(Crash):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert_same(final_state(tmp_path / "run"), rich_ending)


@pytest.mark.parametrize("rest", [b'{"event": "train", "step": 1', b"\x00\x00\xff\xfe\n"], ids=["cut short", "noise"])
def test_lines_that_a_crash_or_a_power_loss_damaged_are_written_anew(rest, rich_ending, tmp_path):
    config, path = tiny_config(**RICH), tmp_path / "run"
    crash(config, path, at=10)
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(rest)
    assert [line.step for line in RunRecord.read(path).training] == [3, 6, 9]
    train(config, path)
    assert_same(final_state(path), rich_ending)


# Real processes and real signals

LONG = ("--loop.num-steps", "160", "--log.eval-every", "40", "--log.spectrum-samples", "0", "--log.every", "3")
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
OPTIONS = (*LONG, "--log.checkpoint-every", "15", "--loop.ema-decay", "0.9", "--budget.low", "-1", "--budget.high", "2")


@pytest.fixture(scope="module")
def long_ending(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "run"
    assert main(["train", "synthetic-jr", "--out", str(path), *OPTIONS]) == 0
    return final_state(path)


@pytest.mark.parametrize("number", each(SIGNALS, signal.SIGINT), ids=lambda number: number.name)
def test_a_signal_saves_the_current_step_and_exits_with_130(number, long_ending, tmp_path):
    # A name that a shell would split.
    path = tmp_path / "my run"
    process = start("train", "synthetic-jr", "--out", str(path), *OPTIONS)
    _, errors = signal_at_step(process, path, 6, number)
    assert process.returncode == 130
    (line,) = errors.splitlines()
    saved = RunFolder(path).checkpoints().steps()[-1]
    assert line.startswith(f"steadeq: Stopped at step {saved} of 160; the state is saved in {path}")
    assert f"To go on: steadeq train --resume --out '{path}'" in line
    assert max(record["step"] for record in metrics_of(path)) in range(saved - 2, saved + 1)
    assert main(["train", "synthetic-jr", "--resume", "--out", str(path)]) == 0
    assert_same(final_state(path), long_ending)
