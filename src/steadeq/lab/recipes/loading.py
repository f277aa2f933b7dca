"""Recipes by name or by file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..._internal.validation import suggestion
from ..config import TrainConfig
from ..errors import InputError
from .registry import Recipe, get, summary_of

_LOADED: dict[Path, ModuleType] = {}
"""Files that were imported: each is imported once, so that its classes stay the same."""


def load_recipe(text: str) -> Recipe:
    """Return a recipe of the package by its name, or one of your own by file and function.

    A file is imported, once, under its name without .py, and may import its neighbors. Nothing of it is called but the
    function, and that only by `Recipe.build`.

    Args:
        text: A name such as "digits", or "path/to/file.py:function" for a function without arguments that returns a
            `TrainConfig`.

    Raises:
        InputError: There is no such recipe, file or function, or the file cannot be imported.

    Example:
        >>> load_recipe("digits").build().loop.batch_size
        57
    """
    file, colon, name = text.rpartition(":")
    if text.endswith(".py"):
        raise InputError(f"{text} is a file; add the name of a function that returns a TrainConfig: {text}:function.")
    if not (colon and file.endswith(".py")):
        return get(text)
    path = Path(file)
    function = _find_function(_import_file(path), name, path)

    def build() -> TrainConfig:
        with _explained(path, f"{text} cannot be built"):
            config = function()
        if not isinstance(config, TrainConfig):
            raise InputError(f"{text} returns {_described(config)}; it must return a TrainConfig.")
        return replace(config, recipe=text)

    return Recipe(name=text, scale=None, summary=summary_of(function), source=path, build=build)


def _import_file(path: Path) -> ModuleType:
    """Return the module of a file."""
    whole = path.resolve()
    if whole in _LOADED:
        return _LOADED[whole]
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    # Dots would stand for packages.
    name = path.stem.replace(".", "_")
    if _is_taken(name, whole):
        raise InputError(f"{path} has the name of another module, {name!r}; give the file another name.")
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported; it must be a Python file.")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    # Dataclasses and pickles look their module up.
    sys.modules[name] = module
    try:
        with _on_search_path(str(whole.parent)), _explained(path, f"{path} cannot be imported"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    _LOADED[whole] = module
    return module


def _is_taken(name: str, path: Path) -> bool:
    """Return whether a name is that of a module which is no file of recipes: to replace it would break others."""
    if name in sys.modules:
        return sys.modules[name] not in _LOADED.values() and _origin(sys.modules[name].__spec__) != path
    spec = importlib.util.find_spec(name)
    return spec is not None and _origin(spec) != path


def _origin(spec: Any) -> Path | None:
    origin = getattr(spec, "origin", None)
    return None if origin is None else Path(origin).resolve()


def _find_function(module: ModuleType, name: str, path: Path) -> Callable[[], Any]:
    """Return a function of a module."""
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise InputError(f"{path} has no function {name!r}.{suggestion(name, functions)}")
    return function


@contextmanager
def _on_search_path(folder: str) -> Iterator[None]:
    """Let a file import its neighbors."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def _explained(path: Path, problem: str) -> Iterator[None]:
    """Turn errors of a file into one sentence that names the error and the line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        # The last line of the file on the way to the error; errors of syntax are nowhere on the way.
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        line = error.lineno if isinstance(error, SyntaxError) and not lines else next(reversed(lines), None)
        place = "" if line is None else f"line {line}: "
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        reason = " ".join(message.split()).removesuffix(".")
        raise InputError(f"{problem}: {place}{type(error).__name__}{': ' if reason else ''}{reason}.") from error


def _described(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
