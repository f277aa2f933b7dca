"""Errors of commands: one sentence each, with a class for each thing that the user can do about it."""

from __future__ import annotations


class InputError(ValueError):
    """An argument, a file or a config is invalid; nothing was written. Commands exit with 2.

    All functions of the lab that read files, data or configs may raise it; their docstrings do not repeat that.
    """


class RunError(RuntimeError):
    """A run had to stop, and what it had saved before is intact. Commands exit with 1."""


class Diverged(RunError):
    """A run made steps that were not finite, one after another."""


class Interrupted(Exception):
    """A run was asked to stop and has saved its state. Commands exit with 130."""


class HelpShown(Exception):
    """The help of a command was asked for, and printed. Commands exit with 0."""


def printable(message: str) -> str:
    r"""Return a message without control characters, which names of files may contain.

    Example:
        >>> printable("no run in \x1b[31mred")
        'no run in ?[31mred'
    """
    return "".join(character if character.isprintable() else "?" for character in message)
