"""The folder of a run as its trainer writes it: config.json, environment.json, metrics.jsonl and checkpoints."""

from __future__ import annotations

import datetime
import fcntl
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from ... import __version__
from ..config import TrainConfig
from ..errors import InputError, RunError
from ..files import check_no_link, check_plain, write_atomically
from ..serialization import config_to_json
from .checkpoint import CheckpointFolder
from .record import Session, read_config, sessions_from_json, sessions_to_json

log = logging.getLogger(__name__)

_GETPATH = 50
"""The request of `fcntl` that macOS answers with the name of an open file; Linux has it in /proc."""
_WRITTEN = ("config.json", "environment.json", "metrics.jsonl", "checkpoints", "tensorboard", "wandb", "mlflow")
"""What a trainer writes in the folder."""


class RunFolder:
    """A run's folder, as the trainer writes it; `steadeq.lab.run.RunRecord` reads it.

    The trainer holds the folder with `lock`, and asks `locate` for its name before each write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        """Where it was when it was last looked for."""
        self._handle: int | None = None

    @property
    def metrics_path(self) -> Path:
        """The file of metrics."""
        return self.path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path, config: TrainConfig) -> RunFolder:
        """Make the folder of a new run."""
        folder = cls(path)
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                hint = "add --resume to continue it, or " if folder.exists() else ""
                raise InputError(f"{path} exists already; {hint}name another folder with --out.")
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "config.json", config_to_json(config), is_new=True)
        except FileExistsError as error:
            raise InputError(
                f"{path} has just been created by another process; name another folder with --out."
            ) from error
        except OSError as error:
            raise InputError(f"The run's folder {path} cannot be written: {error.strerror}.") from error
        return folder

    def exists(self) -> bool:
        """Return whether the folder holds a run."""
        return (self.path / "config.json").is_file()

    def config(self, *, recipe: str | None = None) -> TrainConfig:
        """Return the run's config; see `config_from_json` for the recipe."""
        return read_config(self.path, recipe=recipe)

    def replace_config(self, config: TrainConfig) -> None:
        """Give the run another config, as when it is to be longer."""
        path = self.locate() / "config.json"
        check_plain(path)
        write_atomically(path, config_to_json(config))

    def checkpoints(self, *, keep: int = 2) -> CheckpointFolder:
        """Return the run's checkpoints."""
        return CheckpointFolder(self.path / "checkpoints", keep=keep)

    def record_environment(self, *, device: str, world_size: int) -> None:
        """Note in environment.json with what the run is made; each session adds its own."""
        path = self.locate() / "environment.json"
        check_plain(path)
        try:
            sessions = sessions_from_json(path.read_text())
        except (OSError, ValueError, RecursionError):
            sessions = ()
        session = Session(
            started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            steadeq=__version__,
            torch=torch.__version__,
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
            processors=os.cpu_count(),
            threads=torch.get_num_threads(),
            device=torch.cuda.get_device_name() if device.startswith("cuda") else device,
            processes=world_size,
            arguments=tuple(sys.argv[1:]),
        )
        write_atomically(path, sessions_to_json([*sessions, session]))

    def locate(self) -> Path:
        """Return where the folder is now: one that is moved while it is held is followed, and nothing in its place is.

        Raises:
            RunError: It is held, and gone.
        """
        if self._handle is None:
            return self.path
        if not self._is_at(self.path):
            path = _name_of(self._handle)
            if path is None or not self._is_at(path):
                raise RunError(
                    f"The run's folder {self.path} is gone: it was removed, or moved to another disk, and nothing was "
                    "saved since. If there is a copy of it, --resume continues that."
                )
            log.warning("The run's folder %s was moved; it is now %s.", self.path, path)
            self.path = path
        try:
            # By the handle, as the folder may be moved at any time.
            os.stat("config.json", dir_fd=self._handle)
        except OSError as error:
            raise RunError(
                f"{self.path / 'config.json'} was removed; without it, the run cannot be resumed."
            ) from error
        return self.path

    def _is_at(self, path: Path) -> bool:
        """Return whether a name leads to the folder that is held."""
        assert self._handle is not None
        try:
            return os.path.samestat(path.stat(), os.fstat(self._handle))
        except OSError:
            return False

    @contextmanager
    def lock(self, *, exclusive: bool = True) -> Iterator[None]:
        """Hold the folder, and keep other processes from training in it; the lock dies with the process.

        A folder in which something that a run writes is a link is refused.

        Args:
            exclusive: False for a process of a job whose main process keeps the others out.
        """
        path = self.path / ".lock"
        check_plain(path)
        for name in _WRITTEN:
            check_no_link(self.path / name)
        with ExitStack() as stack:
            try:
                self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(self._release)
                # Not through a link, should there be one by now, and without touching what is in the file.
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
                stack.callback(os.close, lock)
            except OSError as error:
                raise InputError(f"The run's folder {self.path} cannot be written: {error.strerror}.") from error
            if exclusive:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise InputError(f"Another process is training in {self.path}.") from error
            yield

    def _release(self) -> None:
        assert self._handle is not None
        os.close(self._handle)
        self._handle = None


def _name_of(handle: int) -> Path | None:
    """Return the name that an open folder has now, as far as the system tells."""
    try:
        if sys.platform == "darwin":
            return Path(os.fsdecode(fcntl.fcntl(handle, _GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{handle}"))
    except OSError:
        return None
