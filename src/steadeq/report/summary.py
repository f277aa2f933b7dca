"""What a run's folder says, as numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

# Also makes the kinds of models and data known that a config.json may name.
from .. import recipes  # noqa: F401
from ..errors import InputError
from ..train import Run, TrainConfig

Split = Literal["validation", "test"]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSummary:
    """A run as a report sees it; whatever is missing is None, and `problems` says what could not be read."""

    run: Run
    config: TrainConfig
    records: list[dict[str, Any]]
    """Lines of metrics.jsonl."""
    evaluation: dict[str, Any] | None
    """Of `steadeq evaluate`."""
    analysis: dict[str, Any] | None
    """Of `steadeq analyze`."""
    sessions: list[dict[str, Any]]
    """Of environment.json, one for each time that the run was begun or resumed."""
    num_parameters: int | None
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, run: Run) -> RunSummary:
        """Read a run's folder.

        Raises:
            InputError: Its config cannot be read.
        """
        config = run.config()
        problems: list[str] = []
        try:
            lines = run.metrics()
        except (OSError, ValueError):
            problems.append("metrics.jsonl cannot be read.")
            lines = []
        sessions = _read_json(run, "environment.json", list, problems)
        return cls(
            run=run,
            config=config,
            records=[line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)],
            evaluation=_read_json(run, "evaluation.json", dict, problems),
            analysis=_read_json(run, "analysis.json", dict, problems),
            sessions=[session for session in sessions or [] if isinstance(session, dict)],
            num_parameters=_count_parameters(config),
            problems=problems,
        )

    # What it is

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.run.path.resolve().name

    @property
    def metric(self) -> str:
        """Name of the task's metric."""
        return self.config.data.task.metric

    @property
    def is_regularized(self) -> bool:
        """Whether there is a Jacobian penalty at some step."""
        jacobian = self.config.jacobian
        if jacobian.probability == 0 or jacobian.stop_step == 0:
            return False
        grows = jacobian.schedule in ("increments", "closed-loop") or (
            jacobian.schedule == "linear" and jacobian.end > 0
        )
        return jacobian.weight > 0 or grows

    # How far it came

    @property
    def step(self) -> int:
        """Steps completed, as far as recorded."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def steps_per_epoch(self) -> float | None:
        """Steps of a pass over the data; None before the first line."""
        steps, epochs = self.series("train", "epoch")
        return float(steps[-1] / epochs[-1]) if len(steps) and epochs[-1] > 0 else None

    @property
    def num_steps(self) -> int | None:
        """Steps that the run is meant to take; None if nothing tells."""
        loop = self.config.loop
        if loop.num_steps is not None:
            return loop.num_steps
        per_epoch = self.steps_per_epoch
        return None if per_epoch is None else round(loop.num_epochs * per_epoch)

    @property
    def is_finished(self) -> bool:
        """Whether the last step was made and evaluated."""
        return self.num_steps is not None and any(r["step"] >= self.num_steps for r in self._events("evaluation"))

    @property
    def status(self) -> str:
        """How far the run came, in words."""
        if self.step == 0:
            return "nothing recorded yet"
        if self.is_finished:
            return f"finished, {self.step:,} steps"
        if self.num_steps is None:
            return f"at step {self.step:,}"
        if self.step >= self.num_steps:
            return f"all {self.step:,} steps made, the last not evaluated"
        return f"stopped at step {self.step:,} of {self.num_steps:,}"

    @property
    def num_skipped(self) -> int:
        """Steps whose loss or gradient was not finite."""
        return len(self._events("skipped"))

    # What was measured

    def series(self, event: str, name: str) -> tuple[Array, Array]:
        """Return steps and values of what was recorded; lines where it is missing or not finite are left out."""
        pairs = [(r["step"], value) for r in self._events(event) if (value := _finite(r.get(name))) is not None]
        steps, values = zip(*pairs, strict=True) if pairs else ((), ())
        return np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64)

    def elapsed(self) -> tuple[Array, Array]:
        """Return steps and the seconds spent on training up to them by `Run.clock`, evaluations not included."""
        steps, seconds = self.series("train", self.run.clock())
        if not len(steps):
            steps, seconds = self.series("train", "seconds")
        # A line holds the mean over the steps since the line before it.
        return steps, np.cumsum(seconds * np.diff(steps, prepend=0.0))

    def numbers(self, split: Split) -> dict[str, float | None]:
        """Return the numbers that runs are compared by.

        `score`, `evals` and `residual` are of a split, at the evaluation budget of the config (of evaluation.json, the
        row nearest below it); `jacobian_norm` and `spectral_radius`, with its error and for which share of samples that
        is not known, are of the latest evaluation on validation data;
        `forward_evals` and `backward_evals` are means over all steps of training.
        """
        row = self._latest_evaluation() if split == "validation" else self._test_row()
        return {
            "score": _finite(row.get(self.metric)),
            "evals": _finite(row.get("forward_evals")),
            "residual": _finite(row.get("forward_residual")),
            **self._training_numbers,
        }

    @cached_property
    def _training_numbers(self) -> dict[str, float | None]:
        steps, elapsed = self.elapsed()
        seconds = float(elapsed[-1]) if len(elapsed) else None
        per_step = None if seconds is None else seconds / max(float(steps[-1]), 1.0)
        per_epoch = self.steps_per_epoch
        _, memory = self.series("train", "memory_mb")
        latest = self._latest_evaluation()
        return {
            "jacobian_norm": _finite(latest.get("jacobian_norm")),
            "spectral_radius": _finite(latest.get("spectral_radius")),
            "spectral_radius_error": _finite(latest.get("spectral_radius_error")),
            "spectral_radius_unknown": _finite(latest.get("spectral_radius_unknown")),
            "forward_evals": self._mean("forward_evals"),
            "backward_evals": self._mean("backward_evals"),
            "seconds_per_step": per_step,
            "seconds_per_epoch": None if per_step is None or per_epoch is None else per_step * per_epoch,
            "seconds": seconds,
            "memory_mb": float(memory.max()) if len(memory) else None,
            "num_parameters": self.num_parameters,
            "num_skipped": float(self.num_skipped),
        }

    @property
    def evaluation_rows(self) -> list[dict[str, Any]]:
        """Rows of evaluation.json with a budget, by budget."""
        rows = (self.evaluation or {}).get("rows")
        known = [row for row in _dicts(rows) if _finite(row.get("max_evals")) is not None]
        return sorted(known, key=lambda row: row["max_evals"])

    def _test_row(self) -> dict[str, Any]:
        rows, budget = self.evaluation_rows, self.config.forward.evaluation_budget
        within = [row for row in rows if row["max_evals"] <= budget]
        return (within or [{}])[-1]

    def _latest_evaluation(self) -> dict[str, Any]:
        return (self._events("evaluation") or [{}])[-1]

    def _events(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("event") == event]

    def _mean(self, name: str) -> float | None:
        """Return the mean over steps, of which a line may cover several."""
        total = weight = 0.0
        lines = [{"step": 0}, *self._events("train")]
        for before, line in pairwise(lines):
            value = _finite(line.get(name))
            if value is not None:
                total += value * (line["step"] - before["step"])
                weight += line["step"] - before["step"]
        return total / weight if weight else None


def _read_json(run: Run, name: str, kind: type, problems: list[str]) -> Any:
    path = run.path / name
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = None
    if not isinstance(content, kind):
        problems.append(f"{name} cannot be read.")
        return None
    return content


def _count_parameters(config: TrainConfig) -> int | None:
    try:
        with torch.device("meta"):
            model = config.model.build()
    except (InputError, ValueError, RuntimeError):
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def _dicts(values: Any) -> Iterable[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _finite(value: Any) -> float | None:
    """Return a number as a float, and None for whatever is not a finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
