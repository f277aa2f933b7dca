"""What a package above this one adds: commands, recipes and figures, whose modules are imported when needed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The modules of a package, by their full names."""

    commands: Mapping[str, tuple[str, str]]
    """The module of each command, whose function `run` takes the arguments, and what the command does."""
    recipes: str
    """Module that makes its recipes known when it is imported."""
    figures: str
    """Module with `run_figures(trained)`, which returns figures for `steadeq diagnose` by title, and
    `report_sections(groups)`, which returns sections for a report, and sentences on runs by their folders."""


EXTENSIONS: list[Extension] = []
"""The extensions of this process; a package appends its own when it is imported."""


def file_of(module: str) -> str:
    """Return the file of a module, without importing it."""
    package, _, name = module.rpartition(".")
    spec = importlib.util.find_spec(package.partition(".")[0])
    assert spec is not None
    assert spec.origin is not None
    return os.path.join(os.path.dirname(spec.origin), *package.split(".")[1:], f"{name}.py")
