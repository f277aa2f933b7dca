"""What a command says when it cannot go on: one sentence each, told apart by what the user can do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """What was asked for does not exist or makes no sense; nothing was written. Commands exit with 2."""


class RunError(RuntimeError):
    """A run had to stop, and what it had saved before is intact. Commands exit with 1."""


class Diverged(RunError):
    """A run made steps that were not finite, one after another."""


class Interrupted(Exception):
    """A run was asked to stop and has saved its state. Commands exit with 130."""


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Return " Did you mean ...?" for the choice nearest to a misspelled name, or nothing.

    Example:
        >>> suggestion("sythetic", ["synthetic", "digits"])
        " Did you mean 'synthetic'?"
    """
    nearest = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
