"""Hugging Face Transformers: a callback for `Trainer`, and the loops of its looped models for `diagnose`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..diagnosis import Subject
from .monitor import Monitor

try:
    from transformers.trainer_callback import (  # pyright: ignore[reportMissingImports]
        ExportableState,
        TrainerCallback,
    )
except ModuleNotFoundError as error:
    message = "steadeq.integrations.transformers needs Transformers: pip install 'transformers[torch]'."
    raise ModuleNotFoundError(message) from error

__all__ = ["MonitorCallback", "looped"]


class MonitorCallback(TrainerCallback, ExportableState):
    """Logs the solves of a training step with what `Trainer` logs, and saves the regularizer in checkpoints.

    `compute_loss` adds `monitor.penalty()` to its loss; the callback does the rest. The numbers belong to the last step
    before a log. `attach` puts the callback before those that report to TensorBoard and others. If you pass it to
    `Trainer(callbacks=...)` instead, it comes after them, and its numbers appear in `trainer.state.log_history` only.

    Args:
        monitor: The monitor that `compute_loss` uses.
        prefix: Prefix of the names of the logged numbers.
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


def looped(model: Any, input_ids: Tensor, *, labels: Tensor | None = None) -> Subject:
    """Return the loop within a looped model of Transformers, to be diagnosed; no weights are fetched.

    Known are HRM-Text (one evaluation is a whole cycle: all updates of the fast state and one of the slow) and ALBERT
    with one group (one evaluation is its shared layers). Both see their input as the start of the loop only.

    Args:
        model: The model, such as `HrmTextForCausalLM(config)` or one that `from_pretrained` loaded.
        input_ids: (B, T) tokens.
        labels: (B, T) tokens to predict at each position, -100 where none is, if the model has a head for them; the
            metric is then the share of a sample's tokens that are right.

    Raises:
        ValueError: It has no loop that is known here.

    Example:
        `print(looped(model, input_ids, labels=labels).diagnose(max_evals=64))`
    """
    kind = model.config.model_type
    if kind == "hrm_text":
        loop = _hrm_text(model, input_ids)
    elif kind == "albert" and model.config.num_hidden_groups == 1:
        loop = _albert(model, input_ids)
    else:
        raise ValueError(f"model is of type {kind!r}; known are 'hrm_text', and 'albert' with one group.")
    head = getattr(model, "lm_head", None) if kind == "hrm_text" else getattr(model, "predictions", None)
    if labels is None:
        return loop
    if head is None:
        raise ValueError("labels need a model with a head that predicts tokens.")
    is_counted = labels != -100

    def share_right(state: Any) -> Tensor:
        found = head(state[0] if isinstance(state, tuple) else state).argmax(dim=-1)
        return ((found == labels) & is_counted).sum(dim=1) / is_counted.sum(dim=1).clamp(min=1)

    return replace(loop, metric=share_right, metric_name="token accuracy")


def _hrm_text(model: Any, input_ids: Tensor) -> Subject:
    from transformers.masking_utils import create_causal_mask  # pyright: ignore[reportMissingImports]

    core = getattr(model, model.base_model_prefix, model)
    with torch.no_grad():
        embedded = core.embed_tokens(input_ids) * core.embedding_scale
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        mask = create_causal_mask(
            config=core.config, inputs_embeds=embedded, attention_mask=None, past_key_values=None, position_ids=places
        )
        rotary = core.rotary_emb(embedded, places)

    def run(stack: nn.Module, z: Tensor) -> Tensor:
        return stack(z, attention_mask=mask, position_embeddings=rotary, position_ids=places)

    def cycle(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        high, low = state
        for _ in range(core.config.L_cycles):
            low = run(core.L_module, low + high)
        return run(core.H_module, high + low), low

    start = embedded, core.z_L_init.detach().to(embedded).expand_as(embedded).contiguous()
    return Subject(f=cycle, z0=start, training_depth=core.config.H_cycles)


def _albert(model: Any, input_ids: Tensor) -> Subject:
    core = getattr(model, model.base_model_prefix, model)
    (group,) = core.encoder.albert_layer_groups
    with torch.no_grad():
        start = core.encoder.embedding_hidden_mapping_in(core.embeddings(input_ids))
    return Subject(f=lambda z: group(z, None), z0=start, training_depth=core.config.num_hidden_layers)


def _to_lists(state: dict[str, Any]) -> dict[str, Any]:
    return {name: {"tensor": v.tolist()} if isinstance(v, torch.Tensor) else v for name, v in state.items()}


def _to_tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(v["tensor"]) if isinstance(v, dict) else v for name, v in state.items()}
