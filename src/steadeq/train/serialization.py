"""Configs as JSON, and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, TypeVar, Union

from ..errors import InputError, suggestion
from .config import TrainConfig

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config as nested dicts; where its class was open, the key "kind" names it."""
    kind = {"kind": type(config).__name__} if hasattr(type(config), "kinds") else {}
    return kind | {
        field.name: to_dict(value) if dataclasses.is_dataclass(value := getattr(config, field.name)) else value
        for field in dataclasses.fields(config)
    }


def from_dict(content: dict[str, Any], kind: type[T] = TrainConfig, where: str = "") -> T:
    """Build a config from what `to_dict` returned.

    Args:
        content: Nested dicts.
        kind: Class of the config.
        where: Name of the section, for messages.

    Raises:
        InputError: A field is missing, unknown or of the wrong type, by name.
    """
    if not isinstance(content, dict):
        raise InputError(f"{where or 'The config'} is {content!r}; it must be an object.")
    content = dict(content)
    kinds = getattr(kind, "kinds", None)
    if kinds is not None:
        name = content.pop("kind", None)
        if not isinstance(name, str) or name not in kinds:
            raise InputError(f"{where}.kind is {name!r}.{suggestion(str(name), kinds)}")
        kind = kinds[name]
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    values = {}
    for name, value in content.items():
        full = f"{where}.{name}" if where else name
        if name not in fields:
            raise InputError(f"There is no field {full!r}.{suggestion(name, fields)}")
        values[name] = _convert(value, hints[name], full)
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise InputError(f"The field {f'{where}.{name}' if where else name!r} is missing.")
    return kind(**values)


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(value, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if value in arguments:
            return value
    elif origin is tuple:
        each = (
            arguments[:1] * len(value) if arguments[-1] is Ellipsis and isinstance(value, (list, tuple)) else arguments
        )
        if isinstance(value, (list, tuple)) and len(value) == len(each):
            return tuple(_convert(v, a, where) for v, a in zip(value, each, strict=True))
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_dict(value, hint, where)
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    name = getattr(hint, "__name__", str(hint)) if origin is None else str(hint)
    raise InputError(f"{where} is {value!r}; it must be {name}.")


def differences(a: Any, b: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Return (field, value in a, value in b) where two configs differ.

    Example:
        >>> from .config import LoopConfig
        >>> differences(LoopConfig(seed=1), LoopConfig(seed=2))
        [('seed', 1, 2)]
    """
    if type(a) is not type(b):
        return [(f"{where}kind", type(a).__name__, type(b).__name__)]
    found = []
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if dataclasses.is_dataclass(left):
            found += differences(left, right, f"{where}{field.name}.")
        elif left != right:
            found.append((f"{where}{field.name}", left, right))
    return found
