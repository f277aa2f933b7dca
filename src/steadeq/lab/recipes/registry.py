"""Recipes: how they are written, and found by name or by file."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from ...adjoints import Implicit
from ...checks import suggestion
from ..config import TrainConfig
from ..errors import InputError
from ..extension import EXTENSIONS

Scale = Literal["cpu", "day", "paper"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A function that returns a config, and the name under which it is trained."""

    name: str
    """Name of a recipe of the package, or path/to/file.py:function."""
    scale: Scale | None
    """Whether it takes minutes on a laptop, hours, or the paper's hardware; None for recipes in files of users."""
    summary: str
    """One sentence on what is trained."""
    source: Path
    """The file that defines it."""
    build: Callable[[], TrainConfig]
    """Returns the config, with the name as its `recipe`."""


_RECIPES: dict[str, Recipe] = {}
_LOADED: dict[Path, ModuleType] = {}
"""Files that were imported: each is imported once, so that its classes stay the same."""


def recipe(name: str, *, scale: Scale) -> Callable[[Callable[[], TrainConfig]], Callable[[], TrainConfig]]:
    """Make a function that returns a config known under a name; the first line of its docstring is the summary.

    The config that the function returns gets the name, whatever it says itself.
    """

    def register(function: Callable[[], TrainConfig]) -> Callable[[], TrainConfig]:
        if name in _RECIPES:
            raise ValueError(f"name is {name!r}; a recipe with that name exists in {_RECIPES[name].source}.")

        @functools.wraps(function)
        def build() -> TrainConfig:
            return replace(function(), recipe=name)

        summary, source = (inspect.getdoc(function) or "").partition("\n")[0], Path(inspect.getfile(function))
        _RECIPES[name] = Recipe(name=name, scale=scale, summary=summary, source=source, build=build)
        return build

    return register


def regularized(
    config: TrainConfig, *, weight: float, max_evals: int | None = None, learning_rate: float | None = None
) -> TrainConfig:
    """Return a config with another weight of its penalty and, if they are given, another budget and learning rate."""
    if max_evals is not None:
        config = config.with_max_evals(max_evals)
    if learning_rate is not None:
        config = replace(config, optimizer=replace(config.optimizer, learning_rate=learning_rate))
    return replace(config, regularizer=replace(config.regularizer, weight=weight))


def with_coarse_gradients(config: TrainConfig) -> TrainConfig:
    """Return a config whose backward solves stop at a tenth of what they begin with.

    Where a penalty keeps the Jacobian small, more costs time and gains nothing; see benchmarks/time_to_quality.py.
    Recipes that results were published with keep the tolerance that these were made with.
    """
    assert isinstance(config.adjoint, Implicit)
    return replace(config, adjoint=replace(config.adjoint, solver=replace(config.adjoint.solver, tol=1e-1)))


def names() -> list[str]:
    """Return the names of all recipes, with those of extensions."""
    for extension in EXTENSIONS:
        importlib.import_module(extension.recipes)
    return list(_RECIPES)


def get(name: str) -> Recipe:
    """Return the recipe of the package that has a name.

    Args:
        name: The name, as `steadeq recipes` lists it.
    """
    if name not in (known := names()):
        raise InputError(f"There is no recipe {name!r}.{suggestion(name, known)} `steadeq recipes` lists them all.")
    return _RECIPES[name]


def load_recipe(text: str) -> Recipe:
    """Return a recipe of the package by its name, or one of your own by file and function.

    A file is imported, once, under its name without .py, and may import its neighbors. Nothing of it is called but the
    function, and that only by `Recipe.build`.

    Args:
        text: A name such as "digits", or "path/to/file.py:function" for a function without arguments that returns a
            `TrainConfig`.

    Example:
        >>> load_recipe("digits").build().loop.batch_size
        56
    """
    if text.endswith(".py"):
        raise InputError(f"{text} is a file; add the name of a function that returns a TrainConfig: {text}:function.")
    if not names_function(text):
        return get(text)
    path, function = _find_function(text)

    def build() -> TrainConfig:
        return replace(_call(text, path, function, TrainConfig), recipe=text)

    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    return Recipe(name=text, scale=None, summary=summary, source=path, build=build)


def names_function(text: str) -> bool:
    """Return whether a text is path/to/file.py:function."""
    file, colon, _ = text.rpartition(":")
    return bool(colon) and file.endswith(".py")


def call_function(text: str, kind: type[T]) -> T:
    """Return what a function in a file returns, which must be of a kind; the file is executed.

    Args:
        text: "path/to/file.py:function", for a function without arguments.
        kind: What it must return.
    """
    return _call(text, *_find_function(text), kind)


def _find_function(text: str) -> tuple[Path, Callable[[], Any]]:
    file, _, name = text.rpartition(":")
    path = Path(file)
    module = _import_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise InputError(f"{path} has no function {name!r}.{suggestion(name, functions)}")
    return path, function


def _call(text: str, path: Path, function: Callable[[], Any], kind: type[T]) -> T:
    with _explained(path, f"{text} cannot be built"):
        result = function()
    if not isinstance(result, kind):
        described = "None" if result is None else f"an object of type {type(result).__name__}"
        raise InputError(f"{text} returns {described}; it must return a {kind.__name__}.")
    return result


def _import_file(path: Path) -> ModuleType:
    # Unlike `Path.resolve`, this says nothing about links that lead in a circle.
    whole = Path(os.path.realpath(path))
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
    before, folder = sys.modules.get(name), str(whole.parent)
    # Dataclasses and pickles look their module up, and a file may import its neighbors.
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        with _explained(path, f"{path} cannot be imported"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    _LOADED[whole] = module
    return module


def _is_taken(name: str, path: Path) -> bool:
    """Return whether a name belongs to a module which is no file of recipes: to replace it would break others."""
    if name in sys.modules:
        return sys.modules[name] not in _LOADED.values() and _origin(sys.modules[name].__spec__) != path
    spec = importlib.util.find_spec(name)
    return spec is not None and _origin(spec) != path


def _origin(spec: Any) -> Path | None:
    origin = getattr(spec, "origin", None)
    return None if origin is None else Path(origin).resolve()


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
