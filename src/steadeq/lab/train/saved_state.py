"""The state of a checkpoint, looked at before a run goes on from it.

Checksums find damage; whoever writes a state with its checksums may still have made it of other parts than a run has.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...codec import shown

_LIKE_PARAMETERS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}
"""What the optimizers of PyTorch keep for each parameter, in its shape."""
_SET_BY_THE_SESSION = {"lr", "foreach", "fused", "capturable", "differentiable"}
"""Settings of an optimizer that each session makes for itself; all others follow from the config."""


def check_optimizer(state: Any, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a state whose tensors are not those of the parameters of an optimizer, by a ValueError that names them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in state["state"].items():
        if not isinstance(index, int) or not 0 <= index < len(parameters):
            raise ValueError(
                f"optimizer has a state for parameter {index!r}, but there are {len(parameters)} parameters."
            )
        parameter = parameters[index]
        for name, value in entries.items():
            where = f"{name} of parameter {index} in the optimizer"
            if name == "step" and not _is_count(value):
                raise ValueError(f"{where} is not a number of steps.")
            if name in _LIKE_PARAMETERS and value is not None:
                if not isinstance(value, Tensor) or value.shape != parameter.shape:
                    found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    raise ValueError(f"{where} is {found} instead of {tuple(parameter.shape)}.")
                if value.dtype != parameter.dtype:
                    raise ValueError(f"{where} is {value.dtype} instead of {parameter.dtype}.")
    for group, own in zip(state["param_groups"], optimizer.state_dict()["param_groups"], strict=True):
        if not _is_number(group["lr"]):
            raise ValueError(f"lr of the optimizer is {shown(group['lr'])}, which is not a number.")
        for name in group.keys() & own.keys() - _SET_BY_THE_SESSION:
            if type(group[name]) is not type(own[name]) or group[name] != own[name]:
                raise ValueError(f"{name} of the optimizer is {shown(group[name])} instead of {shown(own[name])}.")


def check_window(state: Any) -> None:
    """Refuse sums and counts of another kind than those of a `Window`, by a ValueError or TypeError that names them."""
    sums, counts = state["sums"], state["counts"]
    for part, content, kind in (("sums", sums, float), ("counts", counts, int)):
        if not isinstance(content, dict):
            raise TypeError(f"{part} of the window is a {type(content).__name__}.")
        for name, value in content.items():
            if type(value) is not kind:
                raise TypeError(f"{name!r} in {part} of the window is a {type(value).__name__}.")
    if sums.keys() != counts.keys() or min(counts.values(), default=1) < 1:
        raise ValueError("the sums and counts of the window do not belong together.")


def check_evaluation(values: dict[str, Any]) -> None:
    """Refuse an evaluation of anything but numbers, by a TypeError that names it."""
    for name, value in values.items():
        if not _is_number(value):
            raise TypeError(f"{name!r} of the evaluation is a {type(value).__name__}.")


def _is_count(value: Any) -> bool:
    number: Any = value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
    return _is_number(number) and 0 <= number < math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
