"""Hugging Face Transformers: a callback for `Trainer`."""

from __future__ import annotations

from typing import Any

import torch

from .monitor import Monitor

try:
    from transformers.trainer_callback import (  # pyright: ignore[reportMissingImports]
        ExportableState,
        TrainerCallback,
    )
except ModuleNotFoundError as error:
    message = "steadeq.integrations.transformers needs Transformers: pip install 'transformers[torch]'."
    raise ModuleNotFoundError(message) from error

__all__ = ["MonitorCallback"]


class MonitorCallback(TrainerCallback, ExportableState):
    """Logs the solves of a training step with what `Trainer` logs, and saves the regularizer in checkpoints.

    `compute_loss` adds `monitor.penalty()` to its loss; the callback does the rest. Numbers are those of the last step
    before a log. `attach` puts the callback before those that report to TensorBoard and others; one that is handed to
    `Trainer(callbacks=...)` comes after them, and its numbers are found in `trainer.state.log_history` only.

    Args:
        monitor: The monitor that `compute_loss` uses.
        prefix: What the names of the logged numbers begin with.
    """

    def __init__(self, monitor: Monitor, *, prefix: str = "steadeq/") -> None:
        self.monitor, self.prefix = monitor, prefix
        self._latest: dict[str, float] = {}

    def attach(self, trainer: Any) -> None:
        """Add the callback to a trainer, before all others.

        Args:
            trainer: The `Trainer`.
        """
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from a checkpoint, if training does."""
        saved = state.stateful_callbacks.get(type(self).__name__)
        if state.global_step > 0 and saved is not None:
            self.monitor.load_state_dict(_to_tensors(saved["attributes"]))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a step."""
        self.monitor.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the numbers of a step."""
        self._latest = {self.prefix + name: value for name, value in self.monitor.end().items()}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Add the numbers of the last step to what is logged of training."""
        if logs is not None and "loss" in logs:
            logs.update(self._latest)
            state.log_history[-1].update(self._latest)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs, as JSON can hold it."""
        return {"args": {}, "attributes": _to_lists(self.monitor.state_dict())}


def _to_lists(state: dict[str, Any]) -> dict[str, Any]:
    return {name: {"tensor": v.tolist()} if isinstance(v, torch.Tensor) else v for name, v in state.items()}


def _to_tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(v["tensor"]) if isinstance(v, dict) else v for name, v in state.items()}
