"""Models from configs, and from the folders of their runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..models import AbstractEquilibriumModel, AbstractExplicitModel
from .config import TrainConfig
from .run import Run
from .seeds import derive_seed


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


def build_model(config: TrainConfig) -> AbstractEquilibriumModel | AbstractExplicitModel:
    """Return the freshly initialized model of a run.

    Raises:
        InputError: Its arguments do not fit together.
    """
    torch.manual_seed(derive_seed(config.loop.seed, "initialization"))
    try:
        model = config.model.build()
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise InputError(f"The model cannot be built: {str(error).splitlines()[0]}") from error
    if isinstance(model, AbstractExplicitModel):
        return model
    if not isinstance(model, AbstractEquilibriumModel):
        raise TypeError(f"{type(model).__name__} is neither an equilibrium model nor an explicit one.")
    model.layer.compile_cell = config.loop.compile
    if config.loop.compile:
        # Each new batch size would be compiled anew.
        model.layer.compact = False
    return model


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights into a model.

    Raises:
        InputError: They belong to another model.
    """
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted({*own, *given}):
        if own.get(name) != given.get(name):
            ours, theirs = (str(shapes.get(name, "missing")) for shapes in (own, given))
            raise InputError(f"The checkpoint belongs to another model: {name} is {theirs} there and {ours} here.")
    model.load_state_dict(weights)
