"""Bytes of a run's files that are flipped, cut off, doubled or lost: no damaged weight is ever used."""

import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from torture import subjects
from torture.process import Outcome, command

LAST, BEFORE = 6, 3
"""Steps of the checkpoints of a run that was stopped."""


def attempt(draw: Random, folder: Path) -> None:
    """Damage one file of a run that was stopped, and use the run."""
    kind = draw.choice(("plain", "images", "text", "accumulating"))
    path = subjects.copy_of(subjects.stopped(kind), folder)
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    file = draw.choice(files)
    damage(draw, file)
    use(draw, kind, path, metrics_may_differ=file.name == "metrics.jsonl")
    if f"step-{LAST:08d}" in file.parts:
        # The one before it is whole.
        resume(path).check(0)


def damage(draw: Random, file: Path) -> None:
    """Do one kind of damage to a file."""
    content = bytearray(file.read_bytes())
    place, length = draw.randrange(len(content) + 1), draw.randint(1, 64)
    way = draw.choice(("flip", "truncate", "empty", "delete", "double", "cut", "zero", "append", "replace"))
    if way == "delete":
        file.unlink()
        return
    if way == "flip" and place < len(content):
        content[place] ^= 1 << draw.randrange(8)
    elif way == "truncate":
        del content[place:]
    elif way == "empty":
        content.clear()
    elif way == "double":
        content[place:place] = content[place : place + length]
    elif way == "cut":
        del content[place : place + length]
    elif way == "zero":
        content[place : place + length] = bytes(length)
    elif way == "append":
        content += draw.randbytes(length)
    elif way == "replace":
        content[:] = draw.randbytes(len(content))
    file.write_bytes(content)


def use(draw: Random, kind: str, path: Path, *, metrics_may_differ: bool = False) -> None:
    """Resume, evaluate, diagnose or report a run: it must be refused, or give what the undamaged one gives."""
    name = draw.choice(("resume", "resume", "evaluate", "diagnose", "report"))
    if name == "resume":
        outcome = resume(path)
        outcome.check(0, 1, 2)
        if outcome.code == 0:
            subjects.assert_ends_like(path, kind, with_metrics=not metrics_may_differ)
    else:
        outcome = look(name, path)
        outcome.check(0, 1, 2)
        if name == "evaluate" and outcome.code == 0:
            step, scores = scores_of(path)
            assert scores == expected_scores(kind, step), f"other scores at step {step}"


def resume(path: Path) -> Outcome:
    """Resume a run with nothing but what its folder says."""
    environment = subjects.environment(path.parent)
    return command("train", "--resume", "--out", path.name, folder=path.parent, environment=environment)


def look(name: str, path: Path, *more: str) -> Outcome:
    """Use a command that reads a run."""
    return command(name, path.name, *more, folder=path.parent, environment=subjects.environment(path.parent))


def scores_of(path: Path) -> tuple[int, list]:
    """Return the step and the scores that `evaluate` wrote."""
    content = json.loads((path / "evaluation.json").read_text())
    clock = {"seconds", "seconds_per_sample"}
    return content["step"], [{k: v for k, v in row.items() if k not in clock} for row in content["rows"]]


@cache
def expected_scores(kind: str, step: int) -> list:
    """Return the scores of the undamaged checkpoint of a step."""
    with TemporaryDirectory() as folder:
        path = subjects.copy_of(subjects.stopped(kind), Path(folder))
        look("evaluate", path, "--step", str(step)).check(0)
        return scores_of(path)[1]
