"""`steadeq recipes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import recipes
from .arguments import parse
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `recipes`: none."""


def run(arguments: Sequence[str]) -> int:
    """List what can be trained."""
    parse(Arguments, arguments, command="recipes", summary="List what can be trained.")
    rows = []
    for name in recipes.names():
        recipe = recipes.get(name)
        config = recipe.build()
        with torch.device("meta"):
            model = config.model.build()
        count = sum(parameter.numel() for parameter in model.parameters())
        rows.append([name, recipe.scale, config.data.name, describe_count(count), recipe.summary])
    print_table(["recipe", "scale", "data", "parameters", "what it is"], rows)
    return 0


def describe_count(count: int) -> str:
    """Return a number of parameters as people write it.

    Example:
        >>> describe_count(200), describe_count(31_402), describe_count(97_850_000)
        ('200', '31.4k', '97.85M')
    """
    if count < 1000:
        return str(count)
    return f"{count / 1e3:.1f}k" if count < 1e6 else f"{count / 1e6:.2f}M"
