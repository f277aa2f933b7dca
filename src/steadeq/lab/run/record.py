"""What a run's folder says, as typed records; nothing else reads these files.

The folder of a run holds `config.json`, `metrics.jsonl` (a line for each event of training), `environment.json` (a
session for each time that the run was started or resumed) and, where somebody asked for them, `evaluation.json` of
`steadeq evaluate` and `diagnosis.json` of `steadeq diagnose`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...codec import Reader, dump, to_plain
from ...diagnosis import Diagnosis
from ...models.pretrained import is_pretrained
from ..config import TrainConfig
from ..errors import InputError
from ..serialization import config_from_json
from ..tasks import AbstractTask

Array = NDArray[np.float64]
Split = Literal["validation", "test"]
Event = Literal["train", "evaluation"]
"""Which lines of metrics.jsonl: those of training, or those of evaluations on validation data."""

_T = TypeVar("_T")
_READER = Reader(is_lenient=True)


def _named(metric: str) -> Reader:
    """Return what reads records whose `score` is stored under the name of the metric."""
    return Reader(is_lenient=True, keys={"score": metric})


@dataclass(frozen=True, kw_only=True)
class TrainLine:
    """A line on training: means over the steps since the line before; None where there is no finite number."""

    step: int
    """Steps made so far."""
    epoch: float | None = None
    """Passes over the training data made so far."""
    loss: float | None = None
    """Loss with the penalty."""
    task_loss: float | None = None
    """Loss without the penalty."""
    penalty: float | None = None
    """Penalty with its weight; zero on steps without one."""
    jacobian_norm: float | None = None
    """Estimate of ‖J‖²_F / d, on steps with a penalty."""
    score: float | None = None
    """The task's metric, which the file stores under the metric's name."""
    forward_residual: float | None = None
    """Relative residual at the end of the forward solve."""
    forward_evals: float | None = None
    """Evaluations of the forward solve."""
    backward_residual: float | None = None
    """Relative residual at the end of the backward solve."""
    backward_evals: float | None = None
    """Vector-Jacobian products of the backward solve."""
    grad_norm: float | None = None
    """Norm of the gradient before it is clipped."""
    regularizer_weight: float | None = None
    """Weight gamma of the penalty."""
    penalty_cut: float | None = None
    """Share of the steps at which the guard of a closed loop made the penalty smaller than its weight says."""
    penalty_held_back: float | None = None
    """Share of the steps at which a bound of a closed loop kept it above its target."""
    learning_rate: float | None = None
    """Learning rate of the optimizer."""
    seconds: float | None = None
    """Seconds of a step on the wall clock."""
    cpu_seconds: float | None = None
    """Seconds of a step in which the process was computing."""
    memory_mb: float | None = None
    """Peak memory so far."""
    num_skipped: float | None = None
    """Steps skipped so far, as their loss or gradient was not finite."""
    num_bad_samples: float | None = None
    """Samples left out of a step, as their input, state or loss was not finite."""


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What a pass over a data set gives; None where there is no finite number, or no solve, as in explicit networks."""

    loss: float | None = None
    """Loss of the task."""
    score: float | None = None
    """The task's metric, which files store under the metric's name."""
    forward_residual: float | None = None
    """Relative residual at the end of a solve."""
    forward_evals: float | None = None
    """Evaluations of a solve."""
    converged: float | None = None
    """Share of samples that reached the tolerance."""
    seconds_per_sample: float | None = None
    """Seconds for each sample, or for each token of a text."""


@dataclass(frozen=True, kw_only=True)
class ValidationLine(_Measured):
    """A line on an evaluation on validation data."""

    step: int
    """Steps made so far."""
    epoch: float | None = None
    """Passes over the training data made so far."""
    jacobian_norm: float | None = None
    """Estimate of ‖J‖²_F / d, on some of the samples."""
    spectral_radius: float | None = None
    """Spectral radius by Arnoldi, on some of the samples."""
    spectral_radius_max: float | None = None
    """The largest spectral radius of these samples."""
    spectral_radius_error: float | None = None
    """Error of the spectral radius, as a mean over the samples where it is known."""
    spectral_radius_unknown: float | None = None
    """Share of these samples where the error is not known."""
    spectral_radius_rayleigh: float | None = None
    """Spectral radius by the power method, as in the paper."""
    seconds: float | None = None
    """Seconds of the whole evaluation."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Versions and machine of a run since it was started or resumed; None where that is not known."""

    started: str | None = None
    """Date and time, in the format of ISO 8601."""
    steadeq: str | None = None
    """Version of this package."""
    torch: str | None = None
    """Version of PyTorch."""
    python: str | None = None
    """Version of Python."""
    system: str | None = None
    """Operating system and architecture."""
    processors: int | None = None
    """Number of processors of the machine."""
    threads: int | None = None
    """Number of threads that PyTorch used."""
    device: str | None = None
    """cpu, or the name of the GPU."""
    processes: int | None = None
    """Number of processes that trained together."""
    arguments: tuple[str, ...] = ()
    """Arguments of the command line."""


def sessions_to_json(sessions: Sequence[Session]) -> str:
    """Return the text of environment.json.

    Args:
        sessions: The sessions of a run, in order.
    """
    return dump(list(sessions))


def sessions_from_json(text: str) -> tuple[Session, ...]:
    """Return the sessions of environment.json without entries of another kind; what is no list is a ValueError.

    Args:
        text: What the file says.
    """
    entries = _READER.read(json.loads(text), tuple[Session | None, ...])
    return tuple(entry for entry in entries if entry is not None)


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(_Measured):
    """Numbers of a model at one budget of evaluations."""

    max_evals: int
    """The budget; 0 for an explicit network, which solves nothing."""

    def named(self, metric: str) -> dict[str, float | None]:
        """Return all numbers but the budget, with the score under the name of the metric."""
        numbers = asdict(self)
        del numbers["max_evals"]
        return {metric if name == "score" else name: value for name, value in numbers.items()}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The task's metric against the budget of evaluations: what `steadeq evaluate` writes.

    Example:
        >>> row = EvaluationRow(max_evals=4, score=0.98)
        >>> evaluation = Evaluation(
        ...     split="test", step=300, metric="accuracy", higher_is_better=True, unit="sample", rows=(row,)
        ... )
        >>> Evaluation.from_json(evaluation.to_json()).row(4).score
        0.98
    """

    split: Split
    """Which samples."""
    step: int
    """Step of the checkpoint."""
    metric: str
    """Name of the task's metric."""
    higher_is_better: bool
    """Whether a larger score is a better one."""
    unit: str
    """What times are given for: a sample, or a token of a text."""
    memory_mb: float | None = None
    """Peak memory of the process that evaluated, or of its GPU."""
    rows: tuple[EvaluationRow, ...]
    """One for each budget."""

    def row(self, max_evals: int) -> EvaluationRow | None:
        """Return the row of a budget, or None if it was not measured."""
        return next((row for row in self.rows if row.max_evals == max_evals), None)

    def to_json(self) -> str:
        """Return the text of evaluation.json; numbers that are not finite become null."""
        return dump(to_plain(self) | {"rows": self._rows()})

    def to_csv(self) -> str:
        """Return the rows as CSV, without the columns that no row has."""
        rows = self._rows()
        columns = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else []
        table = io.StringIO()
        writer = csv.DictWriter(table, fieldnames=columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return table.getvalue()

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """Return what `to_json` wrote; a text that is something else is a ValueError."""
        content = json.loads(text)
        return _named(str(content.get("metric")) if isinstance(content, dict) else "").read(content, cls)

    def _rows(self) -> list[dict[str, float | None]]:
        return [{"max_evals": row.max_evals, **row.named(self.metric)} for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class RunDiagnosis:
    """Measurements on some samples: what `steadeq diagnose` writes. Sequences over samples have one entry for each.

    The fields but the last are about the equilibria that the run's solver finds, and that one about plain iteration.
    """

    step: int
    """Step of the checkpoint."""
    split: Split
    """Which samples."""
    num_samples: int
    """How many samples."""
    dim: int
    """Dimension of the state of one sample."""
    tol: float
    """Relative residual at which a solve was finished."""
    max_evals: int
    """Evaluations that a solve could spend."""
    converged: float
    """Share of samples that reached the tolerance."""
    spectral_radius: tuple[float | None, ...]
    """Spectral radius of each sample, by Arnoldi's method."""
    spectral_radius_errors: tuple[float | None, ...]
    """Errors of the spectral radii; None where they are not known."""
    spectral_radius_rayleigh: tuple[float | None, ...]
    """Spectral radius of each sample by the power method, as in the paper."""
    operator_norm: tuple[float | None, ...]
    """Largest singular value of each sample's Jacobian."""
    operator_norm_errors: tuple[float | None, ...]
    """Errors of the operator norms; None where they are not known."""
    jacobian_norm: tuple[float | None, ...]
    """‖J‖²_F / d of each sample."""
    residual_mean: tuple[float | None, ...]
    """Relative residual after 0, 1, 2 ... evaluations, as a mean over samples; None before the first evaluation."""
    residual_low: tuple[float | None, ...]
    """Relative residual that 10% of the samples are below."""
    residual_high: tuple[float | None, ...]
    """Relative residual that 90% of the samples are below."""
    num_evals: tuple[int, ...]
    """Evaluations of each sample."""
    iteration: dict  # of strings to anything
    """What `steadeq.diagnose` found, as `Diagnosis.to_dict` returns it."""

    @property
    def found(self) -> Diagnosis:
        """What `steadeq.diagnose` found, without the end state."""
        return Diagnosis.from_dict(self.iteration)

    def to_json(self) -> str:
        """Return the text of diagnosis.json; numbers that are not finite become null."""
        return dump(self)

    @classmethod
    def from_json(cls, text: str) -> RunDiagnosis:
        """Return what `to_json` wrote; a text that is something else is a ValueError."""
        found: RunDiagnosis = _READER.read(json.loads(text), cls)
        curves = (found.residual_mean, found.residual_low, found.residual_high)
        samples = [found.found.verdicts, *(getattr(found, name) for name in _OF_SAMPLES)]
        if len(set(map(len, curves))) > 1 or {len(values) for values in samples} != {found.num_samples}:
            raise ValueError("Its sequences differ in length.")
        return found


_OF_SAMPLES = (
    "spectral_radius",
    "spectral_radius_errors",
    "spectral_radius_rayleigh",
    "operator_norm",
    "operator_norm_errors",
    "jacobian_norm",
    "num_evals",
)
"""The fields of a diagnosis that have an entry for each sample."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecord:
    """A run, read from its folder; `problems` lists what was unreadable."""

    path: Path
    """The run's folder."""
    config: TrainConfig
    """The complete config of the run."""
    step: int
    """Steps made, as far as recorded."""
    training: tuple[TrainLine, ...]
    """What was recorded of the steps of training."""
    validations: tuple[ValidationLine, ...]
    """What was recorded of the evaluations on validation data."""
    num_skipped: int
    """Number of steps whose loss or gradient was not finite."""
    has_diverged: bool
    """Whether the run ended because too many steps in a row were not finite."""
    is_finished: bool
    """Whether the last step was made and evaluated, and its checkpoint saved."""
    sessions: tuple[Session, ...]
    """One for each time that the run was started or resumed."""
    evaluation: Evaluation | None
    """What `steadeq evaluate` wrote, if it was used."""
    diagnosis: RunDiagnosis | None
    """What `steadeq diagnose` wrote, if it was used."""
    problems: tuple[str, ...]
    """Sentences on what could not be read."""

    @classmethod
    def read(cls, path: Path | str, recipe: str | None = None) -> RunRecord:
        """Read a run's folder; arguments and errors are those of `read_config`."""
        path = Path(path)
        config = read_config(path, recipe=recipe)
        problems: list[str] = []

        def load(name: str, parse: Callable[[str], _T]) -> _T | None:
            file = path / name
            try:
                # Who opens a pipe waits for its other end.
                if file.is_file():
                    return parse(file.read_text(encoding="utf-8", errors="replace"))
                is_there = file.exists()
            except FileNotFoundError:
                return None
            except (OSError, ValueError, RecursionError):
                is_there = True
            if is_there:
                problems.append(f"{name} cannot be read.")
            return None

        lines = load("metrics.jsonl", lambda text: _parse_lines(text, problems)) or []
        events = [line["event"] for line in lines]
        reader = _named(config.data.task.metric)
        return cls(
            path=path,
            config=config,
            step=max((line["step"] for line in lines), default=0),
            training=tuple(reader.read(line, TrainLine) for line in lines if line["event"] == "train"),
            validations=tuple(reader.read(line, ValidationLine) for line in lines if line["event"] == "evaluation"),
            num_skipped=events.count("skipped"),
            has_diverged=events[-1:] == ["diverged"],
            is_finished="finished" in events,
            sessions=load("environment.json", sessions_from_json) or (),
            evaluation=load("evaluation.json", Evaluation.from_json),
            diagnosis=load("diagnosis.json", RunDiagnosis.from_json),
            problems=tuple(problems),
        )

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def task(self) -> AbstractTask:
        """The task that the network learned."""
        return self.config.data.task

    @property
    def metric(self) -> str:
        """Name of the task's metric."""
        return self.task.metric

    @property
    def is_regularized(self) -> bool:
        """Whether there is a penalty at some step."""
        return self.config.regularizer.is_active

    @cached_property
    def num_parameters(self) -> int | None:
        """Number of parameters of the network; None if it cannot be built."""
        try:
            with torch.device("meta"):
                model = self.config.model.build()
        except (ValueError, RuntimeError):
            return None
        return sum(parameter.numel() for parameter in model.parameters())

    @property
    def steps_per_epoch(self) -> float | None:
        """Steps of one pass over the data; None before the first line."""
        steps, epochs = self.series("train", "epoch")
        return float(steps[-1] / epochs[-1]) if len(steps) and epochs[-1] > 0 else None

    @property
    def num_steps(self) -> int | None:
        """Steps that the run is configured to make; None if that is not known."""
        loop = self.config.loop
        if loop.num_steps is not None:
            return loop.num_steps
        per_epoch = self.steps_per_epoch
        return None if per_epoch is None else round(loop.num_epochs * per_epoch)

    @property
    def is_mostly_skipped(self) -> bool:
        """Whether more than half of the steps were skipped, so that it shows no trained network."""
        return 2 * self.num_skipped > self.step

    @property
    def status(self) -> str:
        """How far the run came, in words."""
        if self.step == 0:
            return "nothing recorded yet"
        if self.is_finished:
            skipped = f", {self.num_skipped:,} of them skipped" if self.num_skipped else ""
            return f"finished, {self.step:,} steps{skipped}"
        end = "" if self.num_steps is None else f" of {self.num_steps:,}"
        if self.has_diverged:
            return f"diverged at step {self.step:,}{end}"
        if self.num_steps is None or self.step < self.num_steps:
            return f"stopped at step {self.step:,}{end}"
        is_evaluated = bool(self.validations) and self.validations[-1].step == self.step
        return f"all {self.step:,} steps made, the last not {'saved' if is_evaluated else 'evaluated'}"

    def series(self, event: Event, name: str) -> tuple[Array, Array]:
        """Return the steps and values of a field of the lines; lines without a finite value are left out."""
        lines = self.training if event == "train" else self.validations
        known = [line for line in lines if getattr(line, name) is not None]
        return np.array([float(line.step) for line in known]), np.array([getattr(line, name) for line in known])

    def mean(self, name: str) -> float | None:
        """Return the mean of a field of `TrainLine` over steps; a line counts as many as it covers."""
        _, counts, values = self._covered(name)
        return float((counts * values).sum() / counts.sum()) if counts.any() else None

    @property
    def clock(self) -> Literal["seconds", "cpu_seconds"]:
        """Which of the recorded times tells how long steps took.

        Where one thread of a CPU did all the work it is the time of the processor, as other programs on the same
        machine slow down the wall clock.
        """
        is_alone = bool(self.sessions) and all(s.device == "cpu" and s.threads == 1 for s in self.sessions)
        is_known = any(line.cpu_seconds is not None for line in self.training)
        return "cpu_seconds" if is_alone and is_known else "seconds"

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds of a training step by `clock`, as a mean over all steps; evaluations are not included."""
        return self.mean(self.clock)

    @property
    def seconds(self) -> float | None:
        """Seconds of the whole training by `clock`; evaluations are not included."""
        _, elapsed = self.elapsed()
        return float(elapsed[-1]) if len(elapsed) else None

    def elapsed(self) -> tuple[Array, Array]:
        """Return steps, and the seconds of training up to each of them by `clock`; evaluations are not included."""
        steps, counts, seconds = self._covered(self.clock)
        return steps, np.cumsum(counts * seconds)

    def _covered(self, name: str) -> tuple[Array, Array, Array]:
        """Return the steps of the training lines that have a value, how many steps each line covers, and the values."""
        steps = np.array([line.step for line in self.training], dtype=np.float64)
        # None becomes NaN.
        values = np.array([getattr(line, name) for line in self.training], dtype=np.float64)
        known = np.isfinite(values)
        return steps[known], np.diff(steps, prepend=0)[known], values[known]


def read_config(path: Path, *, recipe: str | None = None) -> TrainConfig:
    """Return the config of a run.

    Args:
        path: The run's folder.
        recipe: The recipe of the run, if its classes are not part of this package; see `config_from_json`.
    """
    file = path / "config.json"
    try:
        missing = "has no config.json" if path.is_dir() else "is a file" if path.exists() else "does not exist"
        text = file.read_text(encoding="utf-8") if file.is_file() else None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{file} cannot be used: {error}.") from error
    if text is None:
        raise InputError(f"{path} is not a run: it {missing}.")
    try:
        return config_from_json(text, recipe=recipe)
    except ValueError as error:
        if is_pretrained(path):
            raise InputError(f"{path} is not a run: it holds a model.") from error
        raise InputError(f"{file} cannot be used: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number over several seeds."""

    mean: float
    """Mean over the seeds."""
    std: float | None
    """Sample standard deviation; None for one seed."""
    count: int
    """Number of seeds that have the number."""


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the mean and the sample standard deviation of what is known, or None if nothing is.

    Args:
        values: The numbers; None is one that is not known.

    Example:
        >>> spread([1.0, None, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, count=2)
        >>> spread([1.0])
        Spread(mean=1.0, std=None, count=1)
    """
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Spread(mean=mean(known), std=stdev(known) if len(known) > 1 else None, count=len(known))


# Lines


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What every line of metrics.jsonl has."""

    event: str
    step: int


def _parse_lines(text: str, problems: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    num_damaged = 0
    for line in text.splitlines(keepends=True):
        try:
            content = json.loads(line)
            _READER.read(content, _Header)
            found.append(content)
        except (ValueError, RecursionError):
            # A crash may cut the last line short, which loses nothing that was not about to be repeated.
            num_damaged += line.endswith("\n")
    if num_damaged:
        problems.append(f"metrics.jsonl has {num_damaged} line{'s' if num_damaged > 1 else ''} that cannot be read.")
    return found
