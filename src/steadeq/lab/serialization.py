"""Configs as JSON, as options of the command line, and back.

A config is a tree of dataclasses. Where a field may hold objects of several classes, its class is stored by name, as
`module:QualName`. Reading a config never imports anything: a class is looked up among the modules that are loaded, and
one outside of this package only if the user has named the recipe that it comes from.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from .._internal.validation import suggestion
from .errors import InputError

if TYPE_CHECKING:
    # Importing torch takes seconds, and commands that need it for nothing else read their arguments by this module.
    from .config import TrainConfig

T = TypeVar("T")
_CLASS = "class"
_PACKAGE = __name__.split(".")[0]
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


# As JSON


def config_to_json(config: TrainConfig) -> str:
    """Return the text of a config.json."""
    return json.dumps(to_dict(config), indent=1) + "\n"


def config_from_json(text: str, *, recipe: str | None = None) -> TrainConfig:
    """Build a config from the text of a config.json.

    If its classes are not part of this package, it needs the recipe that the run was made from, as
    `path/to/file.py:function`. The file is executed: name only files that you trust.
    """
    from .config import TrainConfig
    from .recipes import load_recipe

    if recipe is not None:
        load_recipe(recipe)
    try:
        return from_dict(json.loads(text), TrainConfig, recipe=recipe)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"it is not JSON: {error}.") from error
    except RecursionError as error:
        raise InputError("it is nested too deeply.") from error


def to_dict(config: Any) -> dict[str, Any]:
    """Return a dataclass as nested dicts of what JSON can hold; the key "class" names the class where it is open."""
    content: dict[str, Any] = {}
    for name, value, is_open in _values(config):
        if dataclasses.is_dataclass(value):
            content[name] = ({_CLASS: class_path(type(value))} if is_open else {}) | to_dict(value)
        else:
            content[name] = _plain(value)
    return content


def from_dict(content: Any, kind: type[T], where: str = "", *, recipe: str | None = None) -> T:
    """Build a dataclass, of a class or a subclass of it, from what `to_dict` returned."""
    if not isinstance(content, dict):
        raise InputError(f"{where or 'the config'} is {_shown(content)}; it must be an object.")
    content = dict(content)
    name = content.pop(_CLASS, None)
    if name is not None:
        kind = _find_class(name, kind, where, recipe)
    elif inspect.isabstract(kind):
        raise InputError(f"{join(where, _CLASS)} is missing.")
    hints = typing.get_type_hints(kind)
    fields = [field.name for field in init_fields(kind)]
    for unknown in content.keys() - set(fields):
        raise InputError(f"there is no field {join(where, unknown)!r}.{suggestion(unknown, fields)}")
    values = {n: convert(v, hints[n], join(where, n), recipe=recipe) for n, v in content.items()}
    return build(kind, values, where)


def convert(value: Any, hint: Any, where: str, *, recipe: str | None = None) -> Any:
    """Return a value of JSON as what a type hint asks for."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if origin in _UNIONS:
        if value is None and type(None) in arguments:
            return None
        return convert(value, _without_none(hint), where, recipe=recipe)
    if origin is Literal:
        if value in arguments:
            return value
    elif origin is tuple:
        if isinstance(value, list) and len(value) == len(each := _item_hints(hint, len(value))):
            return tuple(convert(v, a, where, recipe=recipe) for v, a in zip(value, each, strict=True))
    elif is_section(hint):
        return from_dict(value, hint, where, recipe=recipe)
    elif hint is float:
        if value in ("inf", "-inf"):
            return float(value)
        if is_number and abs(value) <= _BOUNDS[float]:
            return float(value)
    elif hint is int:
        if is_number and isinstance(value, int) and abs(value) <= _BOUNDS[int]:
            return value
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    is_large = isinstance(value, (int, float)) and abs(value) > _BOUNDS.get(hint, math.inf)
    bound = f" of at most {_BOUNDS[hint]:.2g} in size" if is_large else ""
    raise InputError(f"{where} is {_shown(value)}; it must be {describe_type(hint)}{bound}.")


def _shown(value: Any) -> str:
    """Return a value as a sentence can hold it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def build(kind: type[T], values: dict[str, Any], where: str) -> T:
    """Return an object of a dataclass."""
    for field in init_fields(kind):
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise InputError(f"{join(where, field.name)} is missing.")
    for name, most in _LIMITS.items():
        if isinstance(value := values.get(name), int) and value > most:
            raise InputError(f"{join(where, name)} is {value}; it must be at most {most}.")
    try:
        return kind(**values)
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        message = str(error)
        # Checks of a class begin with the name of a field.
        is_field = any(message.startswith(f"{field.name} ") for field in init_fields(kind))
        raise InputError(join(where, message) if is_field else message) from error


def class_path(kind: type) -> str:
    """Return the name under which config.json stores a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def class_name(kind: type) -> str:
    """Return the name of a class on the command line; for the config of a model, the name of the model.

    Example:
        >>> from steadeq import Anderson
        >>> from steadeq.models import ResNet
        >>> class_name(Anderson), class_name(ResNet.Config)
        ('Anderson', 'ResNet')
    """
    return kind.__qualname__.removesuffix(".Config").rpartition(".")[2]


def _find_class(name: Any, base: type[T], where: str, recipe: str | None) -> type[T]:
    """Return a class by its stored name, among what is loaded."""
    module_name, _, qualname = str(name).partition(":")
    is_ours = module_name.split(".")[0] == _PACKAGE
    if not is_ours and recipe is None:
        raise InputError(
            f"{join(where, _CLASS)} is {name!r}, which is not part of steadeq. If you trust the file that defines it, "
            "pass --recipe path/to/file.py:function (to train: `steadeq train path/to/file.py:function --resume`; in "
            "Python: recipe=...)."
        )
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        # Only through classes, so that nothing but a class can be reached.
        found = vars(found).get(part) if isinstance(found, (type, types.ModuleType)) else None
    if not isinstance(found, type) or not _is_choice(found) or not issubclass(found, base):
        known = {class_path(kind): kind for kind in subclasses(base)}
        raise InputError(
            f"{join(where, _CLASS)} is {name!r}, which is not a known {base.__name__}.{suggestion(str(name), known)}"
        )
    return found


def is_section(hint: Any) -> bool:
    """Return whether fields of this type hold dataclasses; the base of a family need not be one itself."""
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or inspect.isabstract(hint))


def subclasses(base: type[T]) -> list[type[T]]:
    """Return the classes of which a field of this type can hold an object: all that are loaded, public and concrete."""
    found = [base] if _is_choice(base) else []
    for child in base.__subclasses__():
        found += [kind for kind in subclasses(child) if kind not in found]
    return found


def _is_choice(kind: type) -> bool:
    # Some bases are abstract by their name alone, as they leave nothing but class variables open.
    return (
        dataclasses.is_dataclass(kind)
        and not inspect.isabstract(kind)
        and not kind.__name__.startswith(("_", "Abstract"))
    )


# As fields by name


def flatten(config: Any, where: str = "") -> dict[str, Any]:
    """Return all fields of a config by their full names; an open class is a field "class".

    Example:
        >>> from steadeq import GMRES, Implicit
        >>> flatten(Implicit(GMRES(max_evals=7)))["solver.max_evals"]
        7
    """
    flat: dict[str, Any] = {}
    for field, value, is_open in _values(config):
        name = join(where, field)
        if dataclasses.is_dataclass(value):
            flat |= {join(name, _CLASS): class_name(type(value))} if is_open else {}
            flat |= flatten(value, name)
        else:
            flat[name] = value
    return flat


def has_default(config: Any, name: str) -> bool:
    """Return whether a field, given by its full name, has the default value of its class.

    Example:
        >>> from .config import LoopConfig
        >>> has_default(LoopConfig(seed=1), "seed"), has_default(LoopConfig(seed=1), "compile")
        (False, True)
    """
    first, _, rest = name.partition(".")
    field = next((field for field in init_fields(config) if field.name == first), None)
    if field is None:
        return False
    if rest:
        return has_default(getattr(config, first), rest)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return getattr(config, first) == default


def differences(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """Return (field, value in a, value in b) where two configs differ.

    Example:
        >>> from .config import LoopConfig
        >>> differences(LoopConfig(seed=1), LoopConfig(seed=2))
        [('seed', 1, 2)]
    """
    left, right = flatten(a), flatten(b)
    names = [name for name in left | right if name not in left or name not in right or left[name] != right[name]]
    return [(name, left.get(name), right.get(name)) for name in names]


# As options of the command line


def command_line(config: Any, default: Any, where: str = "") -> list[str]:
    """Return the options that turn a default into a config.

    Example:
        >>> from .config import LoopConfig
        >>> command_line(LoopConfig(seed=3, compile=True), LoopConfig())
        ['--seed', '3', '--compile']
    """
    words: list[str] = []
    for field in init_fields(config):
        if not where and field.name == "recipe":
            continue
        name, value, old = join(where, field.name), getattr(config, field.name), getattr(default, field.name)
        if dataclasses.is_dataclass(value):
            kind = type(value)
            if kind is not type(old):
                words += [flag_of(name), class_name(kind)]
                # What an object of the class is that has just been chosen: what it takes over, and its defaults.
                defaults = {f.name: default_of(f) for f in init_fields(kind)}
                old = SimpleNamespace(**defaults | inherited_values(old, kind))
            words += command_line(value, old, name)
        elif isinstance(value, bool) and value != old:
            words.append(flag_of(name) if value else negated_flag_of(name))
        elif value != old:
            words += [flag_of(name), *map(str, value if isinstance(value, tuple) else [value])]
    return words


def inherited_values(old: Any, kind: type) -> dict[str, Any]:
    """Return what an object of a class takes over from one of another class in its place: fields of common bases."""
    if not dataclasses.is_dataclass(old):
        return {}
    common = [base for base in type(old).__mro__ if base in kind.__mro__ and dataclasses.is_dataclass(base)]
    # A class may derive a field of its base from others.
    taken = {field.name for field in init_fields(kind)}
    names = [field.name for base in common[:1] for field in init_fields(base) if field.name in taken]
    return {name: getattr(old, name) for name in names}


def flag_of(name: str) -> str:
    """Return the option of a field."""
    return f"--{name.replace('_', '-')}"


def negated_flag_of(name: str) -> str:
    """Return the option that switches a field off."""
    section, _, field = name.rpartition(".")
    return flag_of(join(section, f"no-{field}"))


def from_words(words: Sequence[str], hint: Any, where: str) -> Any:
    """Return what the words after an option stand for."""
    try:
        return convert(_plain_words(words, hint), hint, where)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"{where} is {_shown(' '.join(words))}; it must be {describe_type(hint)}.") from None


def _plain_words(words: Sequence[str], hint: Any) -> Any:
    """Return words as JSON would hold them; a ValueError if there are too many or too few, or if one is no number."""
    origin = typing.get_origin(hint)
    if origin in _UNIONS:
        return None if list(words) == ["None"] else _plain_words(words, _without_none(hint))
    if origin is tuple:
        return [_plain_words([word], a) for word, a in zip(words, _item_hints(hint, len(words)), strict=True)]
    if hint is bool and not words:
        return True
    (word,) = words
    if hint is bool:
        return {"true": True, "false": False}.get(word.lower(), word)
    if hint is float and word in ("inf", "-inf"):
        return word
    return hint(word) if hint in (int, float) else word


def describe_type(hint: Any) -> str:
    """Return in words what a type asks for.

    Example:
        >>> describe_type(int | None), describe_type(tuple[float, float])
        ('an integer or None', '2 values, each a number')
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
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


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _without_none(hint: Any) -> Any:
    return next(a for a in typing.get_args(hint) if a is not type(None))


def _item_hints(hint: Any, count: int) -> tuple[Any, ...]:
    """Return the types of the items of a tuple type, of which so many are given."""
    arguments = typing.get_args(hint)
    return arguments[:1] * count if arguments[-1] is Ellipsis else arguments


def _values(config: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name of each field, its value, and whether that may be of another class than the type of the field."""
    hints = typing.get_type_hints(type(config))
    for field in init_fields(config):
        value = getattr(config, field.name)
        yield field.name, value, type(value) is not hints[field.name]


def init_fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that its constructor takes."""
    return [field for field in dataclasses.fields(kind) if field.init]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or `dataclasses.MISSING`."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def join(where: str, name: str) -> str:
    """Return the full name of a field in a section."""
    return f"{where}.{name}" if where else name
