"""What was run: where configs differ, on what machine, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .. import recipes
from ..errors import InputError
from ..runs import RunRecord, Session
from ..serialization import command_line, flatten
from . import notation
from .groups import differing_fields

_ENVIRONMENT = ("steadeq", "torch", "python", "system", "processors", "threads", "device", "processes")


def rerun_command(run: RunRecord) -> list[str]:
    """Return the command that trains such a run again, in parts: the recipe, and each option with its values."""
    command = f"steadeq train {shlex.quote(run.config.recipe)}"
    try:
        # Recipes of files are not executed for a report.
        default = recipes.get(run.config.recipe).build()
    except InputError:
        return [command, "# a recipe that is not part of this version: the full config tells what was changed"]
    options: list[list[str]] = []
    for word in command_line(run.config, default):
        if word.startswith("--"):
            options.append([word])
        else:
            options[-1].append(word)
    return [command, *map(shlex.join, options)]


def difference_table(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Return the fields in which configs differ, and their values for each run."""
    names = differing_fields(runs)
    rows = []
    for config in (flatten(run.config) for run in runs):
        rows.append([notation.setting(config[name]) if name in config else notation.MISSING for name in names])
    return names, rows


def environment_table(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Return what is known of the machines, of each run's latest session, and how many sessions it had."""
    sessions = [session for run in runs for session in run.sessions]
    columns = [name for name in _ENVIRONMENT if any(getattr(session, name) is not None for session in sessions)]
    rows = []
    for run in runs:
        latest = run.sessions[-1] if run.sessions else Session()
        known = (getattr(latest, name) for name in columns)
        rows.append([*(notation.MISSING if value is None else str(value) for value in known), str(len(run.sessions))])
    return [*columns, "sessions"], rows
