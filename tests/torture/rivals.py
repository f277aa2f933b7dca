"""Two trainers in one folder, and readers beside a trainer: one trains, the others are told so, and nothing is lost."""

import time
from pathlib import Path
from random import Random

from torture import subjects
from torture.damages import look
from torture.process import PATIENCE, Outcome


def attempt(draw: Random, folder: Path) -> None:
    """Start a second trainer or a reader while a run trains."""
    kind, path, delay = draw.choice(("plain", "accumulating")), folder / "run", draw.uniform(0, 0.1)
    way = draw.choice(("resume", "resume", "evaluate", "report"))
    others: list[Outcome] = []

    def rival(pid: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (path / "checkpoints").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(delay)
        if way == "resume":
            others.append(subjects.train(kind, path))
        else:
            others.append(look(way, path))

    # Slow enough that the other one finds it at work.
    outcome = subjects.train(kind, path, hook=(_slow_down, 0.5), meanwhile=rival)
    outcome.check(0)
    (other,) = others
    if way == "resume":
        other.check(2)
        assert "Another process is training" in other.errors, other.tail
    else:
        # There may be no checkpoint yet.
        other.check(0, 2)
    subjects.assert_ends_like(path, kind)


def _slow_down(seconds: float) -> None:
    from steadeq.lab.train.step import TrainStep

    plain = TrainStep.forward

    def forward(self, *arguments, **options):
        time.sleep(seconds)
        return plain(self, *arguments, **options)

    TrainStep.forward = forward
