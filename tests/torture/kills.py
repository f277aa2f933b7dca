"""SIGKILL where it hurts: a run that is resumed goes on from its last checkpoint, and ends with the same bits."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from torture import subjects

PLACES = ("start", "step", "evaluation", "metrics", "checkpoint", "state", "fsync", "rename", "replace", "link")


def attempt(draw: Random, folder: Path) -> None:
    """Kill a run up to three times, and resume it."""
    kind, path = draw.choice(list(subjects.KINDS)), folder / "run"
    for _ in range(draw.randint(1, 3)):
        place = draw.choice(PLACES)
        # As often in the first moments, when a folder is half made, as later on.
        last = draw.choice((3, 25)) if place in ("fsync", "rename", "replace") else 6
        call = 1 if place in ("start", "link") else draw.randint(1, last)
        outcome = subjects.train(kind, path, hook=(kill_at, place, call, draw.random() < 0.5))
        if outcome.code != -signal.SIGKILL:
            outcome.check(0)
        subjects.assert_progress(path)
    subjects.train(kind, path).check(0)
    subjects.assert_progress(path)
    subjects.assert_ends_like(path, kind)


def attempt_power(draw: Random, folder: Path) -> None:
    """Cut the power: what no fsync has put on disk is lost. Then resume."""
    kind, path, synced = draw.choice(("plain", "closed-loop", "accumulating")), folder / "run", folder / "synced"
    place, call = draw.choice((("step", draw.randint(4, 8)), ("rename", draw.randint(1, 3)), ("evaluation", 2)))
    outcome = subjects.train(kind, path, hook=(_cut_power_at, str(synced), place, call))
    assert outcome.code == -signal.SIGKILL, outcome.tail
    sizes = dict(map(int, line.split()) for line in synced.read_text().splitlines())
    for file in path.rglob("*"):
        if file.is_file():
            os.truncate(file, min(file.stat().st_size, sizes.get(file.stat().st_ino, 0)))
    subjects.train(kind, path).check(0)
    subjects.assert_progress(path)
    subjects.assert_ends_like(path, kind)


def _cut_power_at(synced: str, place: str, call: int) -> None:
    """Note which files are on disk, and up to which size; then die as `kill_at` does."""
    plain = os.fsync

    def fsync(handle: int) -> None:
        plain(handle)
        status = os.fstat(handle)
        with open(synced, "a") as file:
            file.write(f"{status.st_ino} {status.st_size}\n")

    os.fsync = fsync
    kill_at(place, call, True)


def kill_at(place: str, call: int, is_after: bool) -> None:
    """Have this process killed before or after one of the calls of a function, counted from 1."""
    import torch

    from steadeq.lab.run.checkpoint import CheckpointFolder
    from steadeq.lab.train import Trainer
    from steadeq.lab.train.evaluation import Evaluator
    from steadeq.lab.train.metrics import MetricsLog

    owner: Any
    owner, name = {
        "start": (Trainer, "__init__"),
        "step": (torch.optim.Adam, "step"),
        "evaluation": (Evaluator, "measure"),
        "metrics": (MetricsLog, "write"),
        "checkpoint": (CheckpointFolder, "save"),
        "state": (torch, "save"),
        "fsync": (os, "fsync"),
        "rename": (os, "rename"),
        "replace": (os, "replace"),
        "link": (os, "link"),
    }[place]
    plain: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def deadly(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not is_after:
            if place == "metrics":
                # As a line that is cut off in the middle.
                log = arguments[0]
                log._file.write('{"event": "train", "st')
                log._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*arguments, **options)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)
