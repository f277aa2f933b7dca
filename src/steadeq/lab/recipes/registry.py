"""Recipes by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..._internal.validation import suggestion
from ..config import TrainConfig
from ..errors import InputError

Scale = Literal["cpu", "paper"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A function that returns a config, and the name under which it is trained."""

    name: str
    """Name of a recipe of the package, or path/to/file.py:function."""
    scale: Scale | None
    """Whether it is meant for a laptop or for the paper's hardware; None for recipes in files of users."""
    summary: str
    """One sentence on what is trained."""
    source: Path
    """The file that defines it."""
    build: Callable[[], TrainConfig]
    """Returns the config, with the name as its `recipe`."""


_RECIPES: dict[str, Recipe] = {}


def recipe(name: str, *, scale: Scale) -> Callable[[Callable[[], TrainConfig]], Callable[[], TrainConfig]]:
    """Make a function that returns a config known under a name; the first line of its docstring is the summary.

    The config that the function returns gets the name, whatever it says itself.

    Args:
        name: Name under which it is trained.
        scale: Whether it is meant for a laptop or for the paper's hardware.

    Raises:
        ValueError: There is a recipe of that name already.
    """

    def register(function: Callable[[], TrainConfig]) -> Callable[[], TrainConfig]:
        if name in _RECIPES:
            raise ValueError(f"name is {name!r}; there is a recipe of that name in {_RECIPES[name].source}.")

        @functools.wraps(function)
        def build() -> TrainConfig:
            return replace(function(), recipe=name)

        _RECIPES[name] = Recipe(
            name=name, scale=scale, summary=summary_of(function), source=Path(inspect.getfile(function)), build=build
        )
        return build

    return register


def names() -> list[str]:
    """Return the names of all recipes."""
    return list(_RECIPES)


def get(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        InputError: There is none of that name.
    """
    if name not in _RECIPES:
        raise InputError(f"There is no recipe {name!r}.{suggestion(name, _RECIPES)} `steadeq recipes` lists them all.")
    return _RECIPES[name]


def summary_of(function: Callable[[], TrainConfig]) -> str:
    """Return the first line of a function's docstring, or nothing."""
    return next(iter((inspect.getdoc(function) or "").splitlines()), "")
