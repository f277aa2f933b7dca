"""What was run: where configs differ, on what machine, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .. import recipes
from ..errors import InputError
from ..notation import MISSING, setting
from ..run.record import RunRecord, Session
from ..serialization import command_line, flatten
from .groups import differing_fields

_ENVIRONMENT = ("steadeq", "torch", "python", "system", "processors", "threads", "device", "processes")


def rerun_command(run: RunRecord) -> list[str]:
    """Return the command that trains such a run again, in parts: the recipe, and each option with its values."""
    command = f"steadeq train {shlex.quote(run.config.recipe)}"
    try:
        # Recipes of files are not executed for a report.
        default = recipes.get(run.config.recipe).build()
    except InputError:
        return [command, "# not a recipe of this version: the full config below shows what was changed"]
    options: list[list[str]] = []
    for word in command_line(run.config, default):
        if word.startswith("--"):
            options.append([word])
        else:
            options[-1].append(word)
    # Two runs of a recipe need two folders.
    folder = [] if run.name == run.config.recipe else [f"--out {shlex.quote(f'runs/{run.name}')}"]
    return [command, *folder, *map(shlex.join, options)]


def difference_table(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Return the fields in which configs differ, and their values for each run."""
    names = differing_fields(runs)
    configs = [flatten(run.config) for run in runs]
    return names, [[setting(config[name]) if name in config else MISSING for name in names] for config in configs]


def environment_table(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Return what is known of the machines, of each run's latest session, and how many sessions it had."""
    latest = [run.sessions[-1] if run.sessions else Session() for run in runs]
    names = [name for name in _ENVIRONMENT if any(getattr(session, name) is not None for session in latest)]
    rows = []
    for run, session in zip(runs, latest, strict=True):
        known = [getattr(session, name) for name in names]
        rows.append([*(MISSING if value is None else str(value) for value in known), str(len(run.sessions))])
    return [*names, "sessions"], rows
