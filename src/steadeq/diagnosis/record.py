"""A diagnosis as plain numbers, lists and strings, such as JSON has, and back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..jacobian import Estimate
from .verdict import Verdict

if TYPE_CHECKING:
    from .result import Diagnosis

_PLAIN = {
    "metric_name": str,
    "higher_is_better": bool,
    "radius_missing": str,
    "is_random": bool,
    "num_evals": int,
}
_BY_SAMPLE: dict[str, tuple[torch.dtype, float]] = {
    "is_certain": (torch.bool, math.nan),
    "rate": (torch.float32, math.nan),
    "period": (torch.int64, math.nan),
    "is_path_independent": (torch.bool, math.nan),
    "cosine": (torch.float64, math.nan),
    "movement": (torch.float64, math.inf),
    "movement_after_one": (torch.float64, math.inf),
    "input_effect": (torch.float64, math.inf),
    "is_transient": (torch.bool, math.nan),
    "is_unstable": (torch.bool, math.nan),
    "growth": (torch.float64, math.inf),
    "skip": (torch.float64, math.nan),
    "recall": (torch.float64, math.inf),
    "leak": (torch.float64, math.inf),
    "gain": (torch.float64, math.inf),
}
"""Dtype, and what None stands for: numbers that are not finite, which JSON does not have."""
_MAY_LACK = ("metric", "input_effect", "radius", "training_depth", "recall", "leak", "gain", "bits")


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return all fields but the end state; see `Diagnosis.to_dict`."""
    radius = diagnosis.radius
    return {
        "verdict": [verdict.name.lower() for verdict in diagnosis.verdicts],
        "training_depth": diagnosis.training_depth,
        "starts": list(diagnosis.starts),
        **{name: getattr(diagnosis, name) for name in _PLAIN},
        **{name: _to_list(getattr(diagnosis, name)) for name in (*_BY_SAMPLE, "metric", "residual")},
        # JSON has strings for keys alone.
        "bits": None
        if diagnosis.bits is None
        else [
            [num_bits, [[depth, _finite(x)] for depth, x in scores.items()]]
            for num_bits, scores in diagnosis.bits.items()
        ],
        "radius": None
        if radius is None
        else {
            "value": _to_list(radius.value),
            "error": _to_list(radius.error),
            "num_products": radius.num_products,
        },
    }


def from_dict(kind: type[Diagnosis], content: dict[str, Any]) -> Diagnosis:
    """Return what `to_dict` was given, without the end state; see `Diagnosis.from_dict`."""
    try:
        fields = _read(content)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"The dict is not a diagnosis: {error!r}") from error
    return kind(**fields, z=None)


def _read(content: dict[str, Any]) -> dict[str, Any]:
    verdicts = [Verdict[name.upper()] for name in content["verdict"]]
    size = len(verdicts)
    # Records of earlier versions do without.
    content = {
        **dict.fromkeys(("is_transient", "is_unstable"), [False] * size),
        **dict.fromkeys(("growth", "skip"), [None] * size),
        **dict.fromkeys(("recall", "leak", "gain", "bits")),
        **content,
    }
    fields: dict[str, Any] = {"verdict": torch.tensor(verdicts, device="cpu"), "starts": tuple(content["starts"])}
    for name, kind in {**_PLAIN, "training_depth": int}.items():
        fields[name] = value = content[name]
        _require(type(value) is kind or (value is None and name in _MAY_LACK), name)
    _require(all(type(start) is str for start in fields["starts"]), "starts")
    for name, (dtype, missing) in _BY_SAMPLE.items():
        fields[name] = _to_tensor(content[name], dtype, missing, name)
        _require(fields[name] is None or fields[name].shape == (size,), name)
    residual = fields["residual"] = _to_tensor(content["residual"], torch.float64, math.inf, "residual")
    _require(residual is not None and size > 0 and residual.ndim == 2 and residual.shape[1] == size, "residual")
    assert residual is not None
    num_evals = len(residual)
    metric = fields["metric"] = _to_tensor(content["metric"], torch.float64, math.nan, "metric")
    _require(metric is None or tuple(metric.shape) in ((num_evals + 1, size), (num_evals + 1, 1)), "metric")
    _require(1 <= (fields["training_depth"] or 1) <= num_evals, "training_depth")
    bits = content["bits"]
    fields["bits"] = None if bits is None else {int(count): _scores(rows) for count, rows in bits}
    fields["radius"] = radius = content["radius"]
    if radius is not None:
        value, error = (
            _to_tensor(radius[name], torch.float64, missing, "radius")
            for name, missing in (("value", math.nan), ("error", math.inf))
        )
        _require(value is not None and error is not None and value.shape == error.shape == (size,), "radius")
        assert value is not None
        assert error is not None
        _require(type(radius["num_products"]) is int, "radius")
        fields["radius"] = Estimate(value=value, error=error, num_products=radius["num_products"])
    return fields


def _scores(rows: list[list[Any]]) -> dict[int, float]:
    return {int(depth): math.nan if score is None else float(score) for depth, score in rows}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _require(is_right: bool, name: str) -> None:
    if not is_right:
        raise ValueError(f"{name} has the wrong type or shape")


def _to_list(values: Tensor | None) -> Any:
    return None if values is None else _without(values.tolist())


def _without(values: Any) -> Any:
    """Return nested lists with None for numbers that are not finite."""
    if isinstance(values, list):
        return [_without(value) for value in values]
    return _finite(values)


def _to_tensor(values: Any, dtype: torch.dtype, missing: float, name: str) -> Tensor | None:
    if values is None:
        _require(name in _MAY_LACK, name)
        return None
    rows = values if values and isinstance(values[0], list) else [values]
    filled = [[missing if value is None else value for value in row] for row in rows]
    return torch.tensor(filled if rows is values else filled[0], dtype=dtype, device="cpu")
