"""SIGKILL where it hurts: a run that is resumed afterwards ends with the same bits."""

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
    subjects.train(kind, path).check(0)
    subjects.assert_ends_like(path, kind)


def kill_at(place: str, call: int, is_after: bool) -> None:
    """Have this process killed before or after one of the calls of a function, counted from 1."""
    import torch

    from steadeq.lab.checkpoint import CheckpointFolder
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
