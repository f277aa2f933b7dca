"""Pipes, devices, folders and loops in the place of files: nobody waits for them, or reads them to the end."""

import os
import shutil
import socket
from pathlib import Path
from random import Random

from torture import subjects
from torture.damages import look, resume
from torture.process import command

DATA = {
    "cifar10": ("cifar-10-batches-bin/data_batch_1.bin", "cifar-10-batches-py/data_batch_1", "cifar-10-batches-bin"),
    "fashion-mnist": ("fashion-mnist/train-images-idx3-ubyte", "fashion-mnist/train-labels-idx1-ubyte.gz"),
    "wikitext-2": ("wikitext-2/wiki.train.tokens", "wikitext-2/wiki.valid.tokens", "wikitext-2"),
    "imagenette64": (
        "imagenette2-64/train/n01440764/0.png",
        "imagenette2-64/val/n01440764/0.png",
        "imagenette2-64/train",
    ),
}
RECIPES = {
    "cifar10": "cifar10-mdeq-cpu",
    "fashion-mnist": "fashion-mnist-mdeq-cpu",
    "wikitext-2": "wikitext2-deq-post-cpu",
    "imagenette64": "imagenette64-mdeq-cpu",
}


def attempt(draw: Random, folder: Path) -> None:
    """Put something endless in the place of a file of a run, of a model, or of data."""
    draw.choices((_run, _model, _data), (3, 1, 2))[0](draw, folder)


def _run(draw: Random, folder: Path) -> None:
    kind = draw.choice(("plain", "text"))
    path = subjects.copy_of(subjects.stopped(kind), folder)
    places = sorted(place for place in path.rglob("*") if place.name != ".lock")
    results = ("evaluation.json", "evaluation.csv", "diagnosis.json", ".lock", "report.html")
    # All commands begin with the config.
    place = draw.choice([*places, *(path / name for name in results), *[path / "config.json"] * 5])
    _put(draw, place)
    name = draw.choice(("resume", "resume", "evaluate", "diagnose", "report", "generate"))
    if name == "resume":
        outcome = resume(path)
    else:
        outcome = look(name, path, *(("--prompt", "w1") if name == "generate" else ()))
    assert outcome.code is not None, f"{name} hung on {place.relative_to(path)} ({_what(place)})"
    outcome.check(0, 1, 2)
    if name == "resume" and outcome.code == 0:
        with_metrics = place.name != "metrics.jsonl"
        subjects.assert_ends_like(path, kind, with_metrics=with_metrics)


def _model(draw: Random, folder: Path) -> None:
    from steadeq.models import ToyDEQ

    ToyDEQ(hidden=10).save_pretrained(folder / "model")
    place = folder / "model" / draw.choice(("config.json", "model.safetensors"))
    _put(draw, place)
    arguments = draw.choice(
        (("evaluate", "model", "--data", "synthetic"), ("convert", f"model/{place.name}", "--out", "converted"))
    )
    outcome = command(*arguments, folder=folder, environment=subjects.environment(folder))
    assert outcome.code is not None, f"{arguments} hung on {place.relative_to(folder)} ({_what(place)})"
    outcome.check(2)


def _data(draw: Random, folder: Path) -> None:
    name = draw.choice(list(DATA))
    place = folder / "data" / draw.choice(DATA[name])
    place.parent.mkdir(parents=True)
    _put(draw, place)
    arguments = draw.choice((("data", name), ("train", RECIPES[name], "--out", "run")))
    environment = {**subjects.environment(folder), "STEADEQ_DATA": str(folder / "data")}
    outcome = command(*arguments, folder=folder, environment=environment)
    assert outcome.code is not None, f"{arguments} hung on {place.relative_to(folder)} ({_what(place)})"
    outcome.check(0, 1, 2)


def _put(draw: Random, place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    way = draw.choice(("pipe", "pipe", "zero", "folder", "loop", "nowhere", "socket", "terminal", "memory"))
    if way == "pipe":
        os.mkfifo(place)
    elif way == "folder":
        place.mkdir()
    elif way == "socket":
        # The name of a socket has at most 107 bytes, the path to it may have more.
        with socket.socket(socket.AF_UNIX) as server:
            handle = os.open(place.parent, os.O_RDONLY)
            server.bind(f"/proc/self/fd/{handle}/{place.name}")
            os.close(handle)
    else:
        targets = {"zero": "/dev/zero", "loop": place.name, "nowhere": "/nowhere/at/all", "terminal": "/dev/ptmx"}
        place.symlink_to(targets.get(way, "/proc/self/mem"))


def _what(place: Path) -> str:
    if place.is_symlink():
        return f"a link to {os.readlink(place)}"
    return "a pipe" if place.is_fifo() else "a folder" if place.is_dir() else "a socket"
