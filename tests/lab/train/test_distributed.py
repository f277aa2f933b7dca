"""Several processes, as torchrun starts them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lab.train.runs import assert_same, environment, events_of, final_state, metrics_of, signal_at_step

from steadeq.lab.cli.main import main
from steadeq.lab.run.folder import RunFolder

TIMEOUT = 90
OPTIONS = (
    *("--loop.num-steps", "9", "--loop.batch-size", "16", "--loop.ema-decay", "0.9"),
    *("--log.eval-every", "4", "--log.checkpoint-every", "4", "--log.spectrum-samples", "4", "--log.every", "2"),
    *("--regularizer.probability", "0.7", "--budget.low", "-1", "--budget.high", "2"),
)
LONG = ("--loop.num-steps", "100000", "--log.spectrum-samples", "0", "--log.checkpoint-every", "10")

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")


def start_two(*arguments: str) -> subprocess.Popen:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "steadeq")
    return subprocess.Popen(
        [sys.executable, *launcher, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> tuple[str, str]:
    try:
        return process.communicate(timeout=TIMEOUT)
    finally:
        # A hang must not leave its workers behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def train_two(*arguments: str) -> str:
    """Train in two processes to the end; return standard output."""
    process = start_two("train", *arguments)
    output, errors = finish(process)
    assert process.returncode == 0, errors
    return output


def workers_of(process: subprocess.Popen) -> list[int]:
    """Return the processes that a launcher started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_for_lines(process: subprocess.Popen, path: Path, count: int) -> None:
    """Wait until a run has recorded so much, or the process has ended."""
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if (path / "metrics.jsonl").read_bytes().count(b"\n") >= count:
                return
        time.sleep(0.005)


def assert_close(actual: dict, expected: dict) -> None:
    """Check that weights and metrics are the same up to the order of sums."""
    for name in ("weights", "average"):
        for key, value in expected[name].items():
            torch.testing.assert_close(actual[name][key], value, rtol=1e-5, atol=1e-6)
    for a, b in zip(actual["metrics"], expected["metrics"], strict=True):
        assert a.keys() == b.keys()
        for name in b.keys() - {"event"}:
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), (name, b["step"])


def assert_two_are_one(folder: Path, *options: str) -> str:
    """Check that two processes do what one does with two parts of each batch; return their output."""
    output = train_two("synthetic-jr", *options, "--out", str(folder / "two"))
    assert main(["train", "synthetic-jr", *options, "--loop.accumulate", "2", "--out", str(folder / "one")]) == 0
    assert_close(final_state(folder / "two"), final_state(folder / "one"))
    return output


def test_two_processes_are_one_with_two_parts(tmp_path):
    output = assert_two_are_one(tmp_path, *OPTIONS)
    # One voice and one set of files.
    assert RunFolder(tmp_path / "two").checkpoints().steps() == [8, 9]
    assert output.count("validation mse") == 1
    assert {p.name for p in (tmp_path / "two").iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}


@pytest.mark.slow
def test_two_processes_draw_the_depths_of_one(tmp_path):
    depth = ("--budget.depth", "UniformDepth", "--budget.depth.low", "2", "--budget.depth.high", "8")
    loop = ("--solver", "Picard", "--solver.tol", "0", "--adjoint", "Unrolled", "--adjoint.last", "2")
    assert_two_are_one(tmp_path, *OPTIONS[:-4], *depth, *loop, "--log.every", "1")
    assert len({line["forward_evals"] for line in events_of(tmp_path / "two", "train")}) > 3


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_that_are_killed_resume_bit_for_bit(parallel, tmp_path):
    options = ("--parallel", parallel, "--loop.num-steps", "60", *OPTIONS[2:])
    train_two("synthetic-jr", "--out", str(tmp_path / "whole"), *options)
    path = tmp_path / "killed"
    process = start_two("train", "synthetic-jr", "--out", str(path), *options)
    wait_for_lines(process, path, 5)
    for pid in (*workers_of(process), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT)
    assert RunFolder(path).checkpoints().steps()[-1] < 60
    train_two("--resume", "--out", str(path), "--parallel", parallel)
    assert_same(final_state(path), final_state(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "parallel"), [(signal.SIGINT, "ddp"), (signal.SIGTERM, "ddp"), (signal.SIGTERM, "fsdp")]
)
def test_a_signal_to_the_launcher_saves_the_current_step_and_says_how_to_go_on(number, parallel, tmp_path):
    path = tmp_path / "run"
    options = (*LONG, "--log.checkpoint-every", "100000", "--parallel", parallel)
    process = start_two("train", "synthetic", "--out", str(path), *options)
    _, errors = signal_at_step(process, path, 12, number)
    assert process.returncode != 0
    command = f"torchrun --nproc-per-node 2 -m steadeq train --resume --out {path}"
    # The launcher may end before its processes have said something.
    assert parallel == "ddp" or f"{command} --parallel fsdp" in errors
    (saved,) = RunFolder(path).checkpoints().steps()
    assert saved == metrics_of(path)[-1]["step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem"), [(("--loop.batch-size", "15"), "loop.batch_size is 15"), (LONG, "exists already")]
)
def test_bad_input_ends_the_job_without_a_trace_on_disk(options, problem, tmp_path):
    path = tmp_path if options == LONG else tmp_path / "run"
    (tmp_path / "thesis.txt").write_text("years of work")
    process = start_two("train", "synthetic", "--out", str(path), *options)
    _, errors = finish(process)
    assert process.returncode != 0
    # Once, though both refuse it.
    assert errors.count(problem) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
