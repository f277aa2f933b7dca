"""Models from configs, and from the folders of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..nn import DEQ
from .config import TrainConfig
from .errors import InputError
from .folder import RunFolder
from .seeds import derive_seed


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A model that a run has trained."""

    model: nn.Module
    """The model, in evaluation mode."""
    config: TrainConfig
    step: int
    """Step at which it was saved."""


def load_model(
    run: Path | str, *, step: int | None = None, device: torch.device | str = "cpu", recipe: str | None = None
) -> nn.Module:
    """Return the model of a run, in evaluation mode, with the solver and the adjoint of the run.

    Args:
        run: The run's folder.
        step: Step of the checkpoint; the latest if not given.
        device: Where the model is to be.
        recipe: For a run of your own recipe: `path/to/file.py:function`. The file is executed, and only if you name it.

    Raises:
        InputError: There is no such run, it has no checkpoint, or it needs the recipe.
    """
    return load_trained(Path(run), step=step, device=device, recipe=recipe).model


def load_trained(
    path: Path, *, step: int | None = None, device: torch.device | str = "cpu", recipe: str | None = None
) -> TrainedModel:
    """Return the model of a run with its config and its step; see `load_model`."""
    folder = RunFolder(path)
    config = folder.config(recipe=recipe)
    checkpoints = folder.checkpoints()
    checkpoint = checkpoints.load_latest() if step is None else checkpoints.load(step)
    if checkpoint is None:
        raise InputError(f"{path} has no checkpoint yet; train it first.")
    model = build_model(config)
    load_weights(model, checkpoint.weights if checkpoint.average is None else checkpoint.average)
    return TrainedModel(model=model.to(device).eval(), config=config, step=checkpoint.step)


def build_model(config: TrainConfig) -> nn.Module:
    """Return the freshly initialized model of a run, with the solver and the adjoint of the run."""
    torch.manual_seed(derive_seed(config.loop.seed, "initialization"))
    try:
        model = config.model.build()
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise InputError(f"The model cannot be built: {str(error).splitlines()[0]}") from error
    layer = getattr(model, "layer", None)
    if isinstance(layer, DEQ):
        layer.solver, layer.adjoint = config.evaluation_solver, config.adjoint
        layer.compile_cell = config.loop.compile
        if config.loop.compile:
            # Each new batch size would be compiled anew.
            layer.compact = False
    return model


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights into a model."""
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted({*own, *given}):
        if own.get(name) != given.get(name):
            ours, theirs = (str(shapes.get(name, "missing")) for shapes in (own, given))
            raise InputError(f"The checkpoint belongs to another model: {name} is {theirs} there and {ours} here.")
    model.load_state_dict(weights)
