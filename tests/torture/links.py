"""Links in the folder of a run that somebody else made: nothing is written, or deleted, where they lead."""

import shutil
from pathlib import Path
from random import Random

from torture import subjects
from torture.process import command

WRITTEN = (
    *("config.json", "environment.json", "metrics.jsonl", "metrics.1.jsonl", ".lock", "tensorboard", "report.html"),
    *("evaluation.json", "evaluation.csv", "diagnosis.json", "diagnosis", "diagnosis/surface.png"),
    *("checkpoints", "checkpoints/step-00000006", "checkpoints/step-00000008", "checkpoints/.step-00000008.partial"),
    *("checkpoints/.step-00000006.replaced", "checkpoints/step-00000006/model.safetensors"),
)
FOLDERS = ("tensorboard", "diagnosis", "checkpoints")


def attempt(draw: Random, folder: Path) -> None:
    """Put a link in the place of what a run may write, and use the run."""
    path = subjects.copy_of(subjects.stopped("plain"), folder)
    precious = folder / "precious"
    place = path / draw.choice(WRITTEN)
    way = draw.choice(("its own", "something else", "nothing"))
    if way == "its own" and place.exists():
        # A link to what could be there is the best disguise.
        place.rename(precious)
    elif way != "nothing":
        _make(precious, is_folder=place.name in FOLDERS or "step-" in place.name)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(draw.choice((str(precious), "../precious" if place.parent == path else str(precious))))
    if draw.random() < 0.3 and not place.is_relative_to(path / "checkpoints"):
        # Then what was recorded is kept aside.
        shutil.rmtree(path / "checkpoints")
    before = _content(precious)
    for arguments in draw.sample(COMMANDS, 2):
        outcome = command(*arguments, folder=folder, environment=subjects.environment(folder))
        outcome.check(0, 1, 2)
        assert _content(precious) == before, f"{arguments[0]} wrote through {place.relative_to(path)}"


COMMANDS = (
    ("train", "--resume", "--out", "run"),
    ("train", "--resume", "--out", "run", "--loop.num-steps", "9"),
    ("evaluate", "run"),
    ("diagnose", "run", "--num-samples", "2", "--max-evals", "16"),
    ("report", "run"),
)


def _make(precious: Path, *, is_folder: bool) -> None:
    if is_folder:
        (precious / "step-00000099").mkdir(parents=True)
        (precious / ".step-00000098.partial").mkdir()
        precious = precious / "step-00000099" / "model.safetensors"
    precious.write_text("years of work")


def _content(precious: Path) -> dict[str, bytes | None]:
    """Return all that is there."""
    places = [precious, *precious.rglob("*")] if precious.exists() else []
    return {str(place): place.read_bytes() if place.is_file() else None for place in places}
