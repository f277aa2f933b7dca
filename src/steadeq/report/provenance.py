"""What was run: where configs differ, on what machine, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from .. import recipes
from ..errors import InputError
from .group import differing_fields, flatten
from .summary import RunSummary

_ENVIRONMENT = ("steadeq", "torch", "python", "system", "processors", "threads", "device", "processes")


def unique_names(runs: Sequence[RunSummary]) -> list[str]:
    """Name each run by its folder, with as much of the path as it takes to tell them apart."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [str(run.run.path) for run in runs]


def rerun_command(run: RunSummary) -> list[str]:
    """Return the command that trains such a run again, in parts: the recipe, and each of what was overridden."""
    config = run.config
    try:
        defaults = flatten(recipes.get(config.recipe).build())
    except InputError:
        # A recipe from elsewhere: only the whole config tells.
        return [f"steadeq train {shlex.quote(config.recipe)}", "# a recipe that this version does not have"]
    parts = [f"steadeq train {shlex.quote(config.recipe)}"]
    for name, value in flatten(config).items():
        if name not in defaults or value != defaults[name]:
            parts.append(shlex.join(_option(name, value)))
    return parts


def difference_table(runs: Sequence[RunSummary]) -> tuple[list[str], list[list[str]]]:
    """Return the fields in which configs differ, and their values for each run."""
    fields = differing_fields(runs)
    configs = [flatten(run.config) for run in runs]
    return fields, [[_show(config.get(field)) if field in config else "–" for field in fields] for config in configs]


def environment_table(runs: Sequence[RunSummary]) -> tuple[list[str], list[list[str]]]:
    """Return what is known of the machines, of each run's latest session, and how many sessions it had."""
    columns = [name for name in _ENVIRONMENT if any(name in session for run in runs for session in run.sessions)]
    rows = []
    for run in runs:
        session = run.sessions[-1] if run.sessions else {}
        rows.append([_show(session.get(name, "–")) for name in columns] + [str(len(run.sessions))])
    return [*columns, "sessions"], rows


def _option(name: str, value: Any) -> list[str]:
    """Return a field as options of the command line, where switches have no value."""
    section, _, field = name.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}.{'' if value else 'no-'}{field}"]
    return [f"--{section}.{field}", *(map(str, value) if isinstance(value, (list, tuple)) else [str(value)])]


def _show(value: Any) -> str:
    return ", ".join(map(_show, value)) if isinstance(value, (list, tuple)) else "none" if value is None else str(value)
