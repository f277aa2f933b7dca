"""The folder of a run: config.json, environment.json, metrics.jsonl and checkpoints."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import InputError
from .checkpoint import CheckpointFolder
from .config import TrainConfig
from .files import write_atomically
from .serialization import from_dict, to_dict


class Run:
    """A run's folder.

    Args:
        path: Of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path, config: TrainConfig) -> Run:
        """Make the folder of a new run.

        Raises:
            InputError: There is something already, or the folder cannot be written.
        """
        run = cls(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = "add --resume to continue it, or " if run.exists() else ""
            raise InputError(f"{path} exists already; {hint}name another folder with --out.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "config.json", json.dumps(to_dict(config), indent=1) + "\n", is_new=True)
        except FileExistsError as error:
            raise InputError(f"{path} was made by another process just now; name another folder with --out.") from error
        except OSError as error:
            raise InputError(f"The run's folder {path} cannot be written: {error.strerror}.") from error
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """Return a run that exists.

        Raises:
            InputError: There is none.
        """
        run = cls(path)
        if not run.exists():
            what = "has no config.json" if path.is_dir() else "is a file" if path.exists() else "does not exist"
            raise InputError(f"{path} is not a run: it {what}.")
        return run

    def exists(self) -> bool:
        """Return whether the folder holds a run."""
        return (self.path / "config.json").is_file()

    def config(self) -> TrainConfig:
        """Return the run's config.

        Raises:
            InputError: It is damaged.
        """
        path = self.path / "config.json"
        try:
            return from_dict(json.loads(path.read_text()))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise InputError(f"{path} is damaged: {error}") from error

    def checkpoints(self, *, keep: int = 2) -> CheckpointFolder:
        """Return the run's checkpoints."""
        return CheckpointFolder(self.path / "checkpoints", keep=keep)

    def metrics(self) -> list[dict[str, Any]]:
        """Return what was recorded, line by line; a last line that a crash cut short is left out."""
        if not self.metrics_path.is_file():
            return []
        records = []
        for line in self.metrics_path.read_text(errors="replace").splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return records

    def has_diverged(self) -> bool:
        """Return whether the run ended because its steps were not finite."""
        metrics = self.metrics()
        return bool(metrics) and metrics[-1]["event"] == "diverged"

    def environment(self) -> list[dict[str, Any]]:
        """Return with what the run was made, a session each; nothing if that cannot be read."""
        try:
            sessions = json.loads((self.path / "environment.json").read_text())
        except (OSError, ValueError):
            return []
        return [session for session in sessions if isinstance(session, dict)] if isinstance(sessions, list) else []

    def clock(self) -> str:
        """Return which of the recorded times tells how long steps took.

        Where one thread of a CPU does all the work it is that of the processor: runs share a machine with each other,
        which shows on the clock on the wall.
        """
        sessions = self.environment()
        is_alone = bool(sessions) and all(s.get("device") == "cpu" and s.get("threads") == 1 for s in sessions)
        return "cpu_seconds" if is_alone else "seconds"

    def record_environment(self, *, device: str, world_size: int) -> None:
        """Note in environment.json with what the run is made; each session adds its own."""
        sessions = self.environment()
        sessions.append(
            {
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "steadeq": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.machine()}",
                "processors": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
                "processes": world_size,
                "arguments": sys.argv[1:],
            }
        )
        write_atomically(self.path / "environment.json", json.dumps(sessions, indent=1) + "\n")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in the same folder; the lock dies with the process.

        Raises:
            InputError: One does already.
        """
        try:
            file = (self.path / ".lock").open("w")
        except OSError as error:
            raise InputError(f"The run's folder {self.path} cannot be written: {error.strerror}.") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"Another process is training in {self.path}.") from error
            yield
