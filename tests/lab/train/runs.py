"""Tiny runs, ways to stop them at a chosen place, and what must be equal afterwards; shared by these tests."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import steadeq
from steadeq import ClosedLoop, Increments, Linear, Phantom, StopAfter
from steadeq.lab import recipes
from steadeq.lab.config import RandomBudget, TrainConfig
from steadeq.lab.data import AbstractDataConfig, InMemory, Splits
from steadeq.lab.optimizers import SGD, AdamW
from steadeq.lab.run.checkpoint import Checkpoint
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.tasks import Regression
from steadeq.lab.train import Trainer
from steadeq.lab.train.display import Display

# What a clock or the allocator decides.
UNREPEATABLE = {"seconds", "cpu_seconds", "seconds_per_sample", "memory_mb"}

SOURCE = str(Path(steadeq.__file__).parents[1])


def tiny_config(recipe: str = "synthetic-jr", **sections: Any) -> TrainConfig:
    """Return a run of 12 steps, a tenth of a second.

    A section is either a dict of fields to replace in what the recipe has there, as loop={"seed": 1}, or what to put in
    its place, as optimizer=SGD().
    """
    base = {
        "loop": {"num_steps": 12, "batch_size": 16},
        "log": {"eval_every": 5, "checkpoint_every": 4, "eval_batch_size": 600, "spectrum_samples": 0},
    }
    return change(change(recipes.get(recipe).build(), **base), **sections)


def change(config: TrainConfig, **sections: Any) -> TrainConfig:
    """Return a config with other sections; see `tiny_config`."""
    changed = {
        name: replace(getattr(config, name), **section) if isinstance(section, dict) else section
        for name, section in sections.items()
    }
    return replace(config, **changed)


# Each has state of its own that a resumed run must pick up.
VARIANTS = {
    "plain": {},
    "window": {"log": {"every": 5}},
    "budget-penalized": {
        "solver": {"max_evals": 4, "tol": 0.0},
        "budget": RandomBudget(low=-2, high=3, when="penalized"),
    },
    "increments": {"regularizer": {"schedule": Increments(increment=0.3, every=3, begin=2)}},
    "linear": {"regularizer": {"schedule": StopAfter(step=10, schedule=Linear(end=1.0))}},
    "closed-loop": {
        "regularizer": {"schedule": ClosedLoop(target=1e-4), "weight": 0.2, "probability": 1.0},
        "solver": {"max_evals": 3},
        "log": {"every": 3},
    },
    "closed-loop-radius": {
        "regularizer": {"schedule": ClosedLoop(target=0.05, observed="spectral_radius"), "probability": 1.0},
        "log": {"spectrum_samples": 4, "spectrum_products": 8},
    },
    "average": {"loop": {"ema_decay": 0.9}},
    "sgd": {"optimizer": SGD(learning_rate=0.01, nesterov=True, weight_decay=1e-3, max_grad_norm=1.0)},
    "adamw": {"optimizer": AdamW(weight_decay=0.1, warmup_steps=6, min_learning_rate=1e-4)},
    "phantom": {"adjoint": Phantom(num_steps=3)},
    "spectrum": {"log": {"spectrum_samples": 4, "spectrum_products": 8}},
}


def make_trainer(config: TrainConfig, path: Path, **options) -> Trainer:
    """Return the trainer of a new run."""
    return Trainer(config, RunFolder.create(path, config), **options)


def train(config: TrainConfig, path: Path, **options) -> Trainer:
    """Train in a folder as `steadeq train --resume` does: from the latest checkpoint, if there is one."""
    folder = RunFolder(path)
    if not folder.exists():
        RunFolder.create(path, config)
    trainer = Trainer(config, folder, **options)
    with folder.lock():
        trainer.resume()
        if not (trainer.is_finished and metrics_of(path)[-1]["event"] == "finished"):
            trainer.train()
    return trainer


# Ways to stop


def each(values: Iterable, *quick: Any) -> list:
    """Return the values of a parameter, of which only a few are tried by the quick tests."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


class Crash(BaseException):
    """The process is gone: nobody catches this."""


class Watcher(Display):
    """A display that acts after a step: the line of metrics is written by then, the checkpoint is not."""

    def __init__(self, *, crash_at: int = -1, stop_at: int = -1) -> None:
        self.crash_at, self.stop_at = crash_at, stop_at
        self.trainer: Trainer | None = None
        self.lines: list[str] = []

    def advance(self, title, step, values):
        if step == self.crash_at:
            raise Crash
        if step == self.stop_at:
            assert self.trainer is not None
            self.trainer.interruption.requested = True

    def say(self, text):
        self.lines.append(text)


class Recorder(Watcher):
    """Keeps what each step recorded, and the weights after it, with those of the average if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[dict[str, torch.Tensor]] = []
        self.averages: list[dict[str, torch.Tensor]] = []
        self.values: list[dict[str, float]] = []

    def advance(self, title, step, values):
        assert self.trainer is not None
        self.weights.append(weights_of(self.trainer.model))
        self.averages.append({} if self.trainer.average is None else weights_of(self.trainer.average))
        self.values.append(dict(values))


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the parameters of a model by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def record(config: TrainConfig, path: Path) -> tuple[dict[str, torch.Tensor], Recorder]:
    """Train a new run; return the weights that it began with, and what its steps did."""
    recorder = Recorder()
    trainer = recorder.trainer = make_trainer(config, path, display=recorder)
    initial = weights_of(trainer.model)
    trainer.train()
    return initial, recorder


def train_until(config: TrainConfig, path: Path, *, crash_at: int = -1, stop_at: int = -1) -> Trainer:
    """As `train`, with an end: a crash after a step, or a request to stop that comes after a step."""
    folder = RunFolder(path)
    if not folder.exists():
        RunFolder.create(path, config)
    watcher = Watcher(crash_at=crash_at, stop_at=stop_at)
    trainer = watcher.trainer = Trainer(config, folder, display=watcher)
    with folder.lock():
        trainer.resume()
        trainer.train()
    return trainer


def crash(config: TrainConfig, path: Path, *, at: int) -> None:
    """Train as far as a crash after a step."""
    with pytest.raises(Crash):
        train_until(config, path, crash_at=at)


def make_run(factory: pytest.TempPathFactory, config: TrainConfig, *, crash_at: int | None = None) -> Path:
    """Return a run for the tests of a module: a finished one, or one that crashed after a step."""
    path = factory.mktemp("made") / "run"
    if crash_at is None:
        train(config, path)
    else:
        crash(config, path, at=crash_at)
    return path


def raise_at(monkeypatch, places, call: int, error: BaseException) -> list[str]:
    """Have functions, pairs of owner and name, fail at one of their calls, counted from 1; return the calls so far."""
    calls: list[str] = []

    def watch(owner, name):
        plain = getattr(owner, name)

        def failing(*arguments, **options):
            calls.append(name)
            if len(calls) == call:
                raise error
            return plain(*arguments, **options)

        monkeypatch.setattr(owner, name, failing)

    for owner, name in places:
        watch(owner, name)
    return calls


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# What must be equal


def metrics_of(path: Path) -> list[dict]:
    """Return all that was recorded, without what a clock decides."""
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in UNREPEATABLE} for line in lines]


def events_of(path: Path, event: str) -> list[dict]:
    """Return the lines on one kind of event."""
    return [line for line in metrics_of(path) if line["event"] == event]


def latest(path: Path) -> Checkpoint:
    """Return the latest checkpoint of a run that can be used."""
    checkpoint = RunFolder(path).checkpoints().load_latest()
    assert checkpoint is not None
    return checkpoint


def final_state(path: Path) -> dict:
    """Return weights, optimizer, gamma, counters and metrics of a run as they are on disk."""
    checkpoint = latest(path)
    state = {name: value for name, value in checkpoint.state.items() if name not in ("window", "evaluation")}
    window = checkpoint.state["window"]
    return {
        "weights": checkpoint.weights,
        "average": checkpoint.average,
        "state": state,
        "window": [{k: v for k, v in part.items() if k not in UNREPEATABLE} for part in window.values()],
        "evaluation": {k: v for k, v in checkpoint.state["evaluation"].items() if k not in UNREPEATABLE},
        "metrics": metrics_of(path),
    }


def assert_same(actual, expected, where: str = "") -> None:
    """Check that nested structures are equal, tensors bit for bit."""
    assert type(actual) is type(expected), where
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, where
        assert torch.equal(actual, expected), where
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, (list, tuple)):
        for index, (a, b) in enumerate(zip(actual, expected, strict=False)):
            assert_same(a, b, f"{where}[{index}]")
        assert len(actual) == len(expected), where
    else:
        assert actual == expected, where


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return everything below a folder: the content of files, None for folders; the empty file .lock is left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


def reseal(folder: Path, name: str) -> None:
    """Make the checksum of a file of a checkpoint that was changed fit again."""
    sums = json.loads((folder / "checksums.json").read_text())
    sums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "checksums.json").write_text(json.dumps(sums))


# Other processes


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}


def start(*arguments: str, **options) -> subprocess.Popen:
    """Start the command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "steadeq", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def signal_at_step(
    process: subprocess.Popen, path: Path, step: int, number: signal.Signals, *, pause: float | None = None
) -> tuple[str, str]:
    """Send a signal once metrics.jsonl shows a step; return standard output and error.

    With a pause, the signal is sent again and again until the process has ended.
    """
    deadline = time.monotonic() + 60
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if (path / "metrics.jsonl").is_file() and (path / "metrics.jsonl").read_bytes().count(b'"train"') >= step:
                process.send_signal(number)
                while pause is not None and process.poll() is None and time.monotonic() < deadline:
                    time.sleep(pause)
                    process.send_signal(number)
                break
            time.sleep(0.005)
        return process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()


# Data and networks for tests


@dataclass(frozen=True, kw_only=True)
class LineData(AbstractDataConfig):
    """y = x / 2 on a few samples, some of which can be bad."""

    name = "line"
    task = Regression()

    num_train: int = 48
    num_validation: int = 7
    bad: tuple[int, ...] = ()
    """Rows of the training data whose input is NaN."""
    dtype: str = "float32"

    def load(self) -> Splits:
        count = self.num_train + 2 * self.num_validation
        x = torch.linspace(-1, 1, count, dtype=getattr(torch, self.dtype))[:, None]
        order = torch.randperm(count, generator=torch.Generator().manual_seed(3))
        x = x[order]
        y = x / 2
        x[list(self.bad)] = float("nan")
        samples = InMemory(inputs=x, targets=y)
        ends = (self.num_train, self.num_train + self.num_validation, count)
        return Splits(
            train=samples.subset(0, ends[0]),
            validation=samples.subset(ends[0], ends[1]),
            test=samples.subset(ends[1], ends[2]),
        )
