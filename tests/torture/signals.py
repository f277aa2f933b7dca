"""Ctrl-C, kill and a dead terminal at any moment: the run stops with a checkpoint, and resumes to the same bits."""

import contextlib
import os
import signal
import time
from pathlib import Path
from random import Random

from torture import subjects
from torture.process import PATIENCE, command, interpreter

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def attempt_run(draw: Random, folder: Path) -> None:
    """Send a signal to a run, and resume it."""
    kind, number, delay = draw.choice(list(subjects.KINDS)), draw.choice(NUMBERS), draw.uniform(0, 1)
    ready, path = folder / "ready", folder / "run"
    has_begun = False

    def send(pid: int) -> None:
        nonlocal has_begun
        while not ready.exists():
            time.sleep(0.002)
        time.sleep(delay)
        metrics = path / "metrics.jsonl"
        has_begun = metrics.exists() and b"\n" in metrics.read_bytes()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    outcome = subjects.train(kind, path, hook=(Path.touch, ready), meanwhile=send)
    # Before the run begins there is nothing to save, and all but Ctrl-C do what they always do.
    if has_begun or number == signal.SIGINT or outcome.code != -number:
        outcome.check(0, 130)
    subjects.train(kind, path).check(0)
    subjects.assert_progress(path, is_saved="the state is saved" in outcome.errors)
    subjects.assert_ends_like(path, kind)


def attempt_storm(draw: Random, folder: Path) -> None:
    """Send Ctrl-C again and again until the run has ended, and resume it."""
    path, pause = folder / "run", draw.choice((0, 0.001, 0.01, 0.05))
    metrics = path / "metrics.jsonl"

    def send(pid: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline and not _has_ended(pid):
                os.kill(pid, signal.SIGINT)
                time.sleep(pause)

    arguments = ("-m", "steadeq", "train", *subjects.KINDS["plain"], "--out", "run", "--loop.num-steps", "1000000")
    variables = subjects.environment(folder)
    outcome = interpreter(*arguments, "--log.every", "1", folder=folder, environment=variables, meanwhile=send)
    outcome.check(130)
    assert len(outcome.errors.splitlines()) == 1, outcome.tail
    command("train", "--resume", "--out", "run", "--help", folder=folder, environment=variables).check(0)


def _has_ended(pid: int) -> bool:
    # A child that nobody has waited for yet still takes signals.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def attempt_start(draw: Random, folder: Path) -> None:
    """Send a signal to an interpreter that has just started."""
    # As often in the first moments, when nothing of ours is imported yet, as later on.
    number, delay = draw.choice(NUMBERS), draw.choice((draw.uniform(0.02, 0.4), draw.uniform(0.05, 3)))

    def send(pid: int) -> None:
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    arguments = ("-m", "steadeq", "train", "synthetic", "--out", "run", "--loop.num-steps", "1000000")
    outcome = interpreter(*arguments, folder=folder, environment=subjects.environment(folder), meanwhile=send)
    # The interpreter itself may not have come to us yet.
    if f"{os.sep}steadeq{os.sep}" in outcome.errors or outcome.code not in (1, -number):
        outcome.check(130)
