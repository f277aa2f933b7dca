"""Configs as JSON, as options of the command line, and back.

A config is a tree of dataclasses; `steadeq.codec` says how they look in JSON. Reading a config never imports
anything: a class is looked up among the modules that are loaded, and one outside of this package only if the user has
named the recipe that it comes from.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from ..checks import suggestion
from ..codec import (
    CLASS,
    Reader,
    class_path,
    describe_type,
    init_fields,
    is_abstract,
    is_union,
    item_hints,
    join,
    shown,
    to_plain,
    values_of,
    without_none,
)
from .errors import InputError

if TYPE_CHECKING:
    # Importing torch takes seconds, and commands that need it for nothing else read their arguments by this module.
    from .config import TrainConfig

T = TypeVar("T")
_PACKAGE = __name__.split(".")[0]
_READER = Reader(error=InputError)


# As JSON


def config_to_json(config: TrainConfig) -> str:
    """Return the text of a config.json."""
    return json.dumps(to_plain(config), indent=1) + "\n"


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


def from_dict(content: Any, kind: type[T], *, recipe: str | None = None) -> T:
    """Build a dataclass, of a class or a subclass of it, from what `to_plain` returned."""
    reader = dataclasses.replace(_READER, find_class=partial(_find_class, recipe=recipe))
    return reader.read_section(content, kind)


build = _READER.build
"""Returns an object of a dataclass, given the class, the values of its fields and its name in sentences."""


def class_name(kind: type) -> str:
    """Return the name of a class on the command line; for the config of a model, the name of the model.

    Example:
        >>> from steadeq import Anderson
        >>> from steadeq.models import ResNet
        >>> class_name(Anderson), class_name(ResNet.Config)
        ('Anderson', 'ResNet')
    """
    return kind.__qualname__.removesuffix(".Config").rpartition(".")[2]


def _find_class(name: Any, base: type[T], where: str, *, recipe: str | None) -> type[T]:
    """Return a class by its stored name, among what is loaded."""
    if not isinstance(name, str):
        raise InputError(f"{join(where, CLASS)} is {shown(name)}; it must be a text.")
    module_name, _, qualname = name.partition(":")
    is_ours = module_name.split(".")[0] == _PACKAGE
    if not is_ours and recipe is None:
        raise InputError(
            f"{join(where, CLASS)} is {shown(name)}, which is not part of steadeq. If you trust the file that defines "
            "it, pass --recipe path/to/file.py:function (to train: `steadeq train path/to/file.py:function --resume`; "
            "in Python: recipe=...)."
        )
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        # Only through classes, so that nothing but a class can be reached.
        found = vars(found).get(part) if isinstance(found, (type, types.ModuleType)) else None
    if not isinstance(found, type) or not _is_choice(found) or not issubclass(found, base):
        known = {class_path(kind): kind for kind in subclasses(base)}
        raise InputError(
            f"{join(where, CLASS)} is {shown(name)}, which is not a known {base.__name__}.{suggestion(name, known)}"
        )
    return found


def subclasses(base: type[T]) -> list[type[T]]:
    """Return the classes that a field of this type can hold: all that are loaded, public and concrete, by name."""
    found = [base] if _is_choice(base) else []
    for child in base.__subclasses__():
        found += [kind for kind in subclasses(child) if kind not in found]
    # Ours first, and by name, as the order in which they were loaded means nothing.
    return sorted(found, key=lambda kind: (kind.__module__.split(".")[0] != _PACKAGE, kind.__name__))


def _is_choice(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and not is_abstract(kind) and not kind.__name__.startswith("_")


# As fields by name


def flatten(config: Any, where: str = "") -> dict[str, Any]:
    """Return all fields of a config by their full names; an open class is a field "class".

    Example:
        >>> from steadeq import GMRES, Implicit
        >>> flatten(Implicit(GMRES(max_evals=7)))["solver.max_evals"]
        7
    """
    flat: dict[str, Any] = {}
    for field, value, is_open in values_of(config):
        name = join(where, field)
        if dataclasses.is_dataclass(value):
            flat |= {join(name, CLASS): class_name(type(value))} if is_open else {}
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
    """Return the value that the words after an option stand for."""
    try:
        return _READER.read(_plain_words(words, hint), hint, where)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"{where} is {shown(' '.join(words))}; it must be {describe_type(hint)}.") from None


def _plain_words(words: Sequence[str], hint: Any) -> Any:
    """Return words as JSON would hold them; a ValueError if there are too many or too few, or if one is no number."""
    origin = typing.get_origin(hint)
    if is_union(hint):
        return None if list(words) == ["None"] else _plain_words(words, without_none(hint))
    if origin is tuple:
        return [_plain_words([word], a) for word, a in zip(words, item_hints(hint, len(words)), strict=True)]
    if hint is bool and not words:
        return True
    (word,) = words
    if hint is bool:
        return {"true": True, "false": False}.get(word.lower(), word)
    if hint is float and word in ("inf", "-inf"):
        return word
    return hint(word) if hint in (int, float) else word


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or `dataclasses.MISSING`."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
