"""A trained model from its run's folder."""

from __future__ import annotations

import torch

from ..errors import InputError
from ..models import AbstractEquilibriumModel, AbstractExplicitModel
from .config import TrainConfig
from .loop import build_model, load_weights
from .run import Run


def load_model(
    run: Run, *, step: int | None = None, device: torch.device | str = "cpu"
) -> tuple[AbstractEquilibriumModel | AbstractExplicitModel, TrainConfig, int]:
    """Return the model of a run in evaluation mode, its config, and the step at which it was saved.

    Args:
        run: The run.
        step: Of the checkpoint; the latest if not given.
        device: Where the model is to be.

    Raises:
        InputError: There is no checkpoint, or it belongs to another model.
    """
    config = run.config()
    checkpoints = run.checkpoints()
    checkpoint = checkpoints.load_latest() if step is None else checkpoints.load(step)
    if checkpoint is None:
        raise InputError(f"{run.path} has no checkpoint yet; train it first.")
    model = build_model(config)
    load_weights(model, checkpoint.weights if checkpoint.average is None else checkpoint.average)
    return model.to(device).eval(), config, checkpoint.step
