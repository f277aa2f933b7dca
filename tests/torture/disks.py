"""Disks that are full: one sentence, intact checkpoints, and the same bits once there is room again."""

import errno
import os
import resource
from pathlib import Path
from random import Random
from typing import Any

from torture import subjects


def attempt(draw: Random, folder: Path) -> None:
    """Train where files cannot grow beyond some size, or where some call finds no room; then resume."""
    kind, path = draw.choice(list(subjects.KINDS)), folder / "run"
    for _ in range(draw.randint(1, 2)):
        if draw.random() < 0.5:
            # From a config that does not fit to a checkpoint that does not.
            limits = {resource.RLIMIT_FSIZE: int(10 ** draw.uniform(2, 5.3))}
            outcome = subjects.train(kind, path, limits=limits)
        else:
            name, call = draw.choice(("fsync", "replace", "rename", "mkdir", "open")), draw.randint(1, 30)
            number = draw.choice((errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS))
            outcome = subjects.train(kind, path, hook=(fail_at, str(path), name, call, number))
        outcome.check(0, 1, 2)
        subjects.assert_progress(path)
    subjects.train(kind, path).check(0)
    subjects.assert_progress(path)
    subjects.assert_ends_like(path, kind)


def fail_at(path: str, name: str, call: int, number: int) -> None:
    """Have a function of the system fail at one of its calls for something in a folder, counted from 1."""
    plain, calls = getattr(os, name), 0

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        where = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[0])
        calls += os.path.abspath(where).startswith(path)
        if calls == call:
            calls += 1
            raise OSError(number, os.strerror(number))
        return plain(*arguments, **options)

    setattr(os, name, failing)
