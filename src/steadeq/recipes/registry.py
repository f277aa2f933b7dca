"""Recipes by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError, suggestion
from ..train import TrainConfig

Scale = Literal["cpu", "paper"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named config."""

    name: str
    scale: Scale
    """Whether it is meant for a laptop or for the paper's hardware."""
    summary: str
    build: Callable[[], TrainConfig]


_RECIPES: dict[str, Recipe] = {}


def recipe(name: str, *, scale: Scale) -> Callable[[Callable[[], TrainConfig]], Callable[[], TrainConfig]]:
    """Make a function that returns a config known under a name; its docstring is the summary."""

    def register(build: Callable[[], TrainConfig]) -> Callable[[], TrainConfig]:
        summary = (build.__doc__ or "").strip().splitlines()[0]
        _RECIPES[name] = Recipe(name=name, scale=scale, summary=summary, build=build)
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
