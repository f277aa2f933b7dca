"""Models from configs, from the folders of their runs, and from folders of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ...models import PretrainedModel
from ...models.pretrained import find_not_finite, is_pretrained
from ...nn import DEQ
from ..config import TrainConfig
from ..data import MapDataset, fingerprint
from ..errors import InputError, RunError
from ..recipes import load_recipe
from ..seeds import derive_seed
from .folder import RunFolder
from .identity import Identity


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A model that a run has trained."""

    path: Path
    """Folder of the run, or of the model."""
    model: nn.Module
    """The model, in evaluation mode."""
    config: TrainConfig
    step: int
    """Step at which it was saved."""
    identity: Identity | None = None
    """What the run is tied to; None if its checkpoints do not say."""

    def check_samples(self, split: str, dataset: MapDataset) -> None:
        """Refuse other samples of a split than those of the run, and such whose numbers stand for other words."""
        if self.identity is None:
            return
        if (vocabulary := self.config.data.vocabulary()) is not None:
            self.identity.check_vocabulary(vocabulary.digest(), self.path)
        self.identity.check_data(split, fingerprint(dataset), self.path)


def load_model(
    run: Path | str, *, step: int | None = None, device: torch.device | str = "cpu", recipe: str | None = None
) -> nn.Module:
    """Return the model of a run, or one that `save_pretrained` or `steadeq convert` wrote, in evaluation mode.

    The model of a run has the solver and the adjoint of the run, and one of a folder has its defaults.

    Args:
        run: The folder of the run or of the model.
        step: Step of the checkpoint of a run; the latest if not given.
        device: Where the model is to be.
        recipe: For a model of your own recipe: `path/to/file.py:function`. The file is executed, and only if you name
            it.

    Raises:
        InputError: There is no such run or model, it has no checkpoint, it needs the recipe, or a weight of a model's
            folder is not finite.
        RunError: All checkpoints of the run are damaged, or a weight is not finite.
    """
    path = Path(run)
    if not is_pretrained(path):
        return load_trained(path, step=step, device=device, recipe=recipe).model
    if step is not None:
        raise InputError(f"{path} holds a model, not a run; it has no checkpoint of step {step}.")
    if recipe is not None:
        load_recipe(recipe)
    try:
        model = PretrainedModel.from_pretrained(path)
    except ValueError as error:
        raise InputError(str(error)) from error
    return model.to(device)


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
    saved = checkpoint.state.get("identity")
    identity = None if saved is None else Identity(**saved)
    if identity is not None:
        identity.check_config(config, path)
    model = build_model(config)
    load_weights(model, checkpoint.weights if checkpoint.average is None else checkpoint.average)
    return TrainedModel(
        path=path, model=model.to(device).eval(), config=config, step=checkpoint.step, identity=identity
    )


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
        layer.compiles = config.loop.compile
        if config.loop.compile:
            # Each new batch size would be compiled anew.
            layer.compact = False
    return model


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights into a model; those of another model are an InputError, and such that are not finite a RunError."""
    own, given = (
        {name: _kind(tensor) for name, tensor in tensors.items()} for tensors in (model.state_dict(), weights)
    )
    for name in sorted({*own, *given}):
        if own.get(name) != given.get(name):
            ours, theirs = (kinds.get(name, "missing") for kinds in (own, given))
            raise InputError(
                f"The checkpoint belongs to another model: {name} is {theirs} in the checkpoint and {ours} in the "
                "config."
            )
    model.load_state_dict(weights)
    if (found := find_not_finite(model)) is not None:
        raise RunError(f"The checkpoint cannot be used: its {found} is not finite; train the model again.")


def _kind(tensor: Tensor) -> str:
    """Return the shape and the dtype of a tensor, which nothing is cast to, or from, in silence."""
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
