"""Runs that are moved, removed or replaced while they train: they follow their folder, or say that it is gone."""

import shutil
import time
from pathlib import Path
from random import Random

from lab.train.runs import snapshot
from torture import subjects
from torture.process import PATIENCE


def attempt(draw: Random, folder: Path) -> None:
    """Move, remove or replace the folder of a run at any moment."""
    kind, path, target = draw.choice(("plain", "images", "accumulating")), folder / "run", folder / "moved"
    way, delay = draw.choice(("move", "move", "replace", "link", "remove", "remake")), draw.uniform(0, 0.4)
    other = subjects.copy_of(subjects.stopped("plain"), folder / "other")
    before = snapshot(other)
    has_happened = False

    def meddle(pid: int) -> None:
        nonlocal has_happened
        deadline = time.monotonic() + PATIENCE
        while not (path / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(delay)
        # Whether the run was through by then.
        has_happened = b'"finished"' not in (path / "metrics.jsonl").read_bytes()
        path.rename(target)
        if way == "replace":
            other.rename(path)
        elif way == "link":
            path.symlink_to(other)
        elif way in ("remove", "remake"):
            while target.exists() and time.monotonic() < deadline:
                # The run may be at work in it.
                shutil.rmtree(target, ignore_errors=True)
            if way == "remake":
                path.mkdir()

    outcome = subjects.train(kind, path, meanwhile=meddle)
    if way in ("remove", "remake"):
        outcome.check(*((1, 0) if has_happened else (0,)))
        # While files are still being removed, the folder is there, and what was removed first is missing.
        reasons = ("gone", "config.json", "No such file or directory")
        assert outcome.code == 0 or any(reason in outcome.errors for reason in reasons), outcome.tail
        assert not target.exists()
        assert not path.exists() or not list(path.iterdir()), "it wrote to what was put in its place"
        return
    outcome.check(0)
    assert snapshot(path if way == "replace" else other) == before, "it wrote to what was put in its place"
    assert way != "move" or not path.exists(), "it made its folder anew"
    subjects.assert_progress(path)
    assert (target / "metrics.jsonl").read_bytes().endswith(b'"finished", "step": 8}\n')
    subjects.assert_ends_like(target, kind, with_metrics=False)
