"""Trackers, such as TensorBoard or W&B, which get the lines of metrics.jsonl too."""

from __future__ import annotations

import math
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...codec import to_plain
from ..config import TrainConfig
from ..errors import InputError


class AbstractTracker(ABC):
    """Takes named numbers of steps."""

    @abstractmethod
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record the numbers of a step, which may be one that was recorded before a run was killed."""

    def flush(self) -> None:  # noqa: B027 (most have nothing to do)
        """Write everything that is buffered."""

    @abstractmethod
    def close(self) -> None:
        """End the session."""


def open_trackers(config: TrainConfig, folder: Path, *, step: int) -> list[AbstractTracker]:
    """Return the trackers that a config asks for.

    Args:
        config: The config of the run.
        folder: The run's folder.
        step: The step from which the run goes on.

    Raises:
        InputError: One of them is not installed, or cannot be started.
    """
    trackers: list[AbstractTracker] = []
    for name, is_asked_for, start in (
        ("TensorBoard", config.log.tensorboard, lambda: _TensorBoard(folder / "tensorboard", step)),
        ("Weights & Biases", config.log.wandb, lambda: _Wandb(config, folder)),
        ("MLflow", config.log.mlflow, lambda: _MLflow(config, folder)),
    ):
        try:
            if is_asked_for:
                trackers.append(start())
        except ImportError as error:
            package = {"TensorBoard": "tensorboard", "Weights & Biases": "wandb", "MLflow": "mlflow"}[name]
            raise InputError(f"{name} is not installed: pip install {package}.") from error
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(f"{name} cannot be started: {reason}") from error
    return trackers


class _TensorBoard(AbstractTracker):
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events of steps after the given one are hidden.
        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb(AbstractTracker):
    def __init__(self, config: TrainConfig, folder: Path) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "steadeq"),
            name=folder.name,
            id=_identifier(folder / "wandb" / "id"),
            resume="allow",
            dir=str(folder),
            config=to_plain(config),
            settings=wandb.Settings(console="off", quiet=True),
        )
        # Steps go back when a run is resumed from a checkpoint, which its own counter would not allow.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def close(self) -> None:
        self._run.finish()


class _MLflow(AbstractTracker):
    def __init__(self, config: TrainConfig, folder: Path) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        tag = _identifier(folder / "mlflow" / "id")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow' / 'mlflow.db').resolve()}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "steadeq")
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        known = self._client.search_runs([number], filter_string=f"tags.steadeq = '{tag}'")
        run = known[0] if known else self._client.create_run(number, run_name=folder.name, tags={"steadeq": tag})
        self._id = run.info.run_id
        if not known:
            for key, value in _flat(to_plain(config)).items():
                self._client.log_param(self._id, key, value)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            # Its databases have no other numbers.
            if math.isfinite(value):
                self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _identifier(path: Path) -> str:
    """Return the name under which a tracker knows a run, the same each time that the run goes on."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex)
    return path.read_text()


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: str(value)[:500]}
    return flat
