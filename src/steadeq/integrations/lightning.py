"""Lightning: the penalty, the numbers of all solves, and the state of the regularizer in checkpoints."""

from __future__ import annotations

from typing import Any

from .monitor import Monitor

try:
    from lightning.pytorch.callbacks import Callback  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:
    try:
        from pytorch_lightning.callbacks import Callback  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        message = "steadeq.integrations.lightning needs Lightning: pip install lightning (or pytorch-lightning)."
        raise ModuleNotFoundError(message) from error

__all__ = ["MonitorCallback"]


class MonitorCallback(Callback):  # pyright: ignore[reportGeneralTypeIssues] (one of two classes)
    """Logs the solves of every step of the optimizer, and saves the regularizer in checkpoints.

    `training_step` adds `monitor.penalty()` to its loss; the callback does the rest.

    Args:
        monitor: The monitor that `training_step` uses.
        prefix: Prefix of the names of the logged numbers.
    """

    def __init__(self, monitor: Monitor, *, prefix: str = "steadeq/") -> None:
        self.monitor, self.prefix = monitor, prefix

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step, unless gradients are being accumulated in one."""
        if self.monitor.step != trainer.global_step:
            self.monitor.begin(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the numbers of a step, once the optimizer has made it."""
        if self.monitor.step is not None and self.monitor.step != trainer.global_step:
            pl_module.log_dict({self.prefix + name: value for name, value in self.monitor.end().items()})

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.monitor.load_state_dict(state_dict)
