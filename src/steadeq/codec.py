"""Dataclasses as what JSON holds, and back: configs, records of runs, results, and the folders of models.

A dataclass is an object with its fields. Where a field may hold objects of several classes, the key "class" names the
class as `module:QualName`. Tuples are lists, paths are strings.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from .checks import suggestion

T = TypeVar("T")
CLASS = "class"
_UNIONS = (Union, types.UnionType)
_BOUNDS: dict[Any, float] = {int: 2**63 - 1, float: 3.4028234663852886e38}
"""The largest numbers that tensors of int64 and of float32 can hold."""
_LIMITS = {
    "max_evals": 100_000,
    "high": 100_000,
    "depth": 10_000,
    "memory": 10_000,
    "num_probes": 10_000,
    "num_samples": 10_000,
    "spectrum_samples": 10_000,
    "max_products": 10_000,
    "spectrum_products": 10_000,
    "jobs": 1_000,
    "num_seeds": 1_000,
}
"""The most that fields of these names may be: beyond it is a typo, which would take all memory or all day."""


class AbstractCoded(ABC):
    """A dataclass that has a form of its own in JSON."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what JSON holds of it."""

    @classmethod
    @abstractmethod
    def from_json(cls: type[T], content: Mapping[str, Any]) -> T:
        """Return what `to_json` was called on."""


# To JSON


def to_plain(value: Any, not_finite: Callable[[float], str | None] = str) -> Any:
    """Return a value as JSON can hold it.

    Args:
        value: A dataclass, a number, a text, a path, None, or sequences or mappings of such.
        not_finite: Returns what stands for a number that JSON does not have; by default its name.

    Example:
        >>> to_plain({"tol": math.inf, "path": Path("runs"), "sizes": (1, 2)})
        {'tol': 'inf', 'path': 'runs', 'sizes': [1, 2]}
    """
    if isinstance(value, AbstractCoded):
        return to_plain(value.to_json(), not_finite)
    if dataclasses.is_dataclass(value):
        content: dict[str, Any] = {}
        for name, inner, is_open in values_of(value):
            tag = {CLASS: class_path(type(inner))} if is_open and dataclasses.is_dataclass(inner) else None
            plain = to_plain(inner, not_finite)
            content[name] = plain if tag is None else tag | plain
        return content
    if isinstance(value, Mapping):
        return {name: to_plain(inner, not_finite) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(inner, not_finite) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return not_finite(value)
    return str(value) if isinstance(value, Path) else value


def dump(value: Any) -> str:
    """Return the text of a file of JSON, with null for numbers that are not finite."""
    return json.dumps(to_plain(value, lambda _: None), indent=1) + "\n"


# From JSON


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Turns what JSON holds into what type hints ask for, or says in a sentence what does not fit."""

    error: type[ValueError] = ValueError
    """What is raised."""
    find_class: Callable[[Any, type, str], type] | None = None
    """Returns the class of a stored name, given the type of the field and its full name; None if none is stored."""
    is_lenient: bool = False
    """Whether to make the best of it: what may be None is None where its value does not fit, fields that are not known
    are left out, and numbers may be of any size."""
    is_complete: bool = False
    """Whether fields with defaults must be there too."""
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The keys of fields that are stored under another name."""

    def read(self, value: Any, hint: Any, where: str = "") -> Any:
        """Return a value as what a type hint asks for; `where` is its name in sentences."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is Any:
            return value
        if is_union(hint):
            if value is None and type(None) in arguments:
                return None
            try:
                return self.read(value, without_none(hint), where)
            except ValueError:
                if self.is_lenient:
                    return None
                raise
        size = abs(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        if origin is Literal:
            if value in arguments:
                return value
        elif origin is tuple:
            if isinstance(value, list) and len(value) == len(each := item_hints(hint, len(value))):
                return tuple(self.read(v, a, where) for v, a in zip(value, each, strict=True))
        elif origin is Sequence:
            if isinstance(value, list):
                return [self.read(item, arguments[0], where) for item in value]
        elif origin is Mapping:
            if isinstance(value, dict):
                return {name: self.read(item, arguments[1], join(where, name)) for name, item in value.items()}
        elif is_section(hint):
            return self.read_section(value, hint, where)
        elif hint is float:
            if value in ("inf", "-inf") and not self.is_lenient:
                return float(value)
            if size is not None and size <= (sys.float_info.max if self.is_lenient else _BOUNDS[float]):
                return float(value)
        elif hint is int:
            if size is not None and isinstance(value, int) and size <= _BOUNDS[int]:
                return value
        elif hint is Path and isinstance(value, str):
            return Path(value)
        elif isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
            return value
        is_large = size is not None and size > _BOUNDS.get(hint, math.inf)
        bound = f" of at most {_BOUNDS[hint]:.2g} in size" if is_large else ""
        raise self.error(f"{where or 'it'} is {shown(value)}; it must be {describe_type(hint)}{bound}.")

    def read_section(self, content: Any, kind: type[T], where: str = "") -> T:
        """Return a dataclass, of a class or a subclass of it, from what `to_plain` returned."""
        if not isinstance(content, dict):
            raise self.error(f"{where or 'the config'} is {shown(content)}; it must be an object.")
        if issubclass(kind, AbstractCoded):
            return kind.from_json(content)
        content = dict(content)
        if self.find_class is not None:
            name = content.pop(CLASS, None)
            if name is not None:
                kind = self.find_class(name, kind, where)
            elif is_abstract(kind):
                raise self.error(f"{join(where, CLASS)} is missing.")
        hints = hints_of(kind)
        keys = {self.keys.get(field.name, field.name): field.name for field in init_fields(kind)}
        for unknown in () if self.is_lenient else content.keys() - keys.keys():
            raise self.error(f"there is no field {join(where, unknown)!r}.{suggestion(unknown, keys)}")
        values = {n: self.read(content[k], hints[n], join(where, n)) for k, n in keys.items() if k in content}
        return self.build(kind, values, where)

    def build(self, kind: type[T], values: dict[str, Any], where: str = "") -> T:
        """Return an object of a dataclass."""
        for field in init_fields(kind):
            has_default = not field.default is field.default_factory is dataclasses.MISSING
            if field.name not in values and (self.is_complete or not has_default):
                raise self.error(f"{join(where, field.name)} is missing.")
        for name, most in () if self.is_lenient else _LIMITS.items():
            if isinstance(value := values.get(name), int) and value > most:
                raise self.error(f"{join(where, name)} is {value}; it must be at most {most}.")
        try:
            return kind(**values)
        except (ValueError, TypeError) as error:
            if self.error is not ValueError and isinstance(error, self.error):
                raise
            message = str(error)
            # Checks of a class begin with the name of a field.
            is_field = any(message.startswith(f"{field.name} ") for field in init_fields(kind))
            raise self.error(join(where, message) if is_field else message) from error


# Types


def class_path(kind: type) -> str:
    """Return the name under which JSON stores a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def is_abstract(kind: type) -> bool:
    """Return whether a class is the base of a family, and nothing is an object of it alone.

    Some bases say so by their name only, as they leave nothing but class variables open.
    """
    return inspect.isabstract(kind) or kind.__name__.startswith("Abstract")


def is_section(hint: Any) -> bool:
    """Return whether fields of this type hold dataclasses; the base of a family need not be one itself."""
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or inspect.isabstract(hint))


def values_of(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name of each field, its value, and whether that may be of another class than the type of the field."""
    hints = hints_of(type(value))
    for field in init_fields(value):
        inner = getattr(value, field.name)
        yield field.name, inner, type(inner) is not hints[field.name]


def init_fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that its constructor takes."""
    return [field for field in dataclasses.fields(kind) if field.init]


hints_of = cache(typing.get_type_hints)


def is_union(hint: Any) -> bool:
    """Return whether a type is a choice of several, such as one that may be None."""
    return typing.get_origin(hint) in _UNIONS


def without_none(hint: Any) -> Any:
    """Return the type of what is there, for one that may be None."""
    return next(a for a in typing.get_args(hint) if a is not type(None))


def item_hints(hint: Any, count: int) -> tuple[Any, ...]:
    """Return the types of the items of a tuple type, of which so many are given."""
    arguments = typing.get_args(hint)
    return arguments[:1] * count if arguments[-1] is Ellipsis else arguments


# Words


def join(where: str, name: str) -> str:
    """Return the full name of a field in a section."""
    return f"{where}.{name}" if where else name


def shown(value: Any) -> str:
    """Return a value as a sentence can hold it."""
    return shortened(repr(value), 80)


def shortened(text: str, most: int) -> str:
    """Return a text without its middle if it is longer than a sentence should be: what is wrong stands at its end."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def describe_type(hint: Any) -> str:
    """Return in words what a type asks for.

    Example:
        >>> describe_type(int | None), describe_type(tuple[float, float])
        ('an integer or None', '2 values, each a number')
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_union(hint):
        return " or ".join(describe_type(a) for a in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        count = "any number of values" if arguments[-1] is Ellipsis else f"{len(arguments)} values"
        return f"{count}, each {describe_type(arguments[0])}"
    return _WORDS.get(hint) or f"a {getattr(hint, '__name__', hint)}"


_WORDS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Path: "a path",
    type(None): "None",
}
