"""What a run records: averages over steps, and one line of JSON for each."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import RunError
from ..files import write_atomically
from .trackers import AbstractTracker

log = logging.getLogger(__name__)

_STATUS = Path("/proc/self/status")
"""Where Linux tells the memory of this process."""


@dataclass
class Window:
    """Running means of named values since the last line of metrics; part of a checkpoint.

    Example:
        >>> window = Window()
        >>> window.add({"loss": 1.0}); window.add({"loss": 3.0, "penalty": 5.0})
        >>> window.take()
        {'loss': 2.0, 'penalty': 5.0}
        >>> window.take()
        {}
    """

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, values: dict[str, float]) -> None:
        """Add the values of one step; a mean covers only the steps that have its value."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """Return the means and begin anew."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means


class MetricsLog:
    """`metrics.jsonl`, and the same numbers for trackers such as TensorBoard."""

    def __init__(self, path: Path, *, trackers: Sequence[AbstractTracker] = ()) -> None:
        self._path, self._trackers = path, trackers
        self._file = path.open("a")

    @staticmethod
    def rewind(path: Path, *, step: int, evaluated_at: int) -> None:
        """Drop the lines that a run wrote after the checkpoint from which it resumes.

        A file with lines that cannot be read, other than a last one that a crash cut off, is kept under another name,
        and so is the file of a run whose checkpoints are lost.

        Args:
            path: The file.
            step: Step of the checkpoint; 0 if there is none.
            evaluated_at: Step of the last evaluation, which may be earlier than the step at which one was due.
        """
        if not path.is_file():
            return
        kept, damaged = [], []
        lines = path.read_text(errors="replace").splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                is_later = record["step"] > (evaluated_at if record["event"] == "evaluation" else step)
                # The last line is written anew when the run is through.
                if not is_later and record["event"] != "finished":
                    kept.append(line.strip() + "\n")
            except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
                # A line that a crash cut off is the last one, and has no end.
                if number < len(lines) or line.endswith("\n"):
                    damaged.append(number)
        if damaged:
            _set_aside(path, f"{path} has lines that cannot be read ({', '.join(map(str, damaged[:5]))})")
        elif step == 0 and lines:
            _set_aside(path, f"There is no checkpoint, and {path} would begin anew")
        write_atomically(path, "".join(kept))

    def write(self, event: str, step: int, values: dict[str, Any]) -> None:
        """Append one line; what is not finite becomes null, as JSON has no such numbers."""
        infinite = {name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)}
        record = {"event": event, "step": step, **values, **dict.fromkeys(infinite)}
        with self._failures_told():
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        numbers = {f"{event}/{name}": value for name, value in values.items() if isinstance(value, (int, float))}
        for tracker in self._trackers:
            tracker.write(step, numbers)

    def sync(self) -> None:
        """Have all lines on disk."""
        with self._failures_told():
            os.fsync(self._file.fileno())
        for tracker in self._trackers:
            tracker.flush()

    def close(self) -> None:
        """Close the files."""
        try:
            with self._failures_told():
                self._file.close()
        finally:
            for tracker in self._trackers:
                tracker.close()

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{self._path} could not be written ({error.strerror}); the checkpoints are intact."
            raise RunError(message) from error


def _set_aside(path: Path, reason: str) -> None:
    """Keep a copy of a file under a name that is not taken, and say so."""
    copies = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    # A link that leads nowhere yet is there too.
    copy = next(copy for copy in copies if not os.path.lexists(copy))
    with path.open("rb") as source, copy.open("xb") as target:
        shutil.copyfileobj(source, target)
    log.warning("%s; it is kept as %s.", reason, copy.name)


def forget_peak_memory(device: torch.device) -> None:
    """Have `peak_memory` count from now on, as a process may have trained another run before; on Linux and GPUs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _STATUS.exists():
        with suppress(OSError):
            _STATUS.with_name("clear_refs").write_text("5")


def peak_memory(device: torch.device) -> float:
    """Return the most memory used so far, in MB: of the GPU, or of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    with suppress(OSError, StopIteration):
        # Unlike that of getrusage, this peak can be forgotten.
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kilobytes, macOS bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def now(device: torch.device) -> float:
    """Return the time, after the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
