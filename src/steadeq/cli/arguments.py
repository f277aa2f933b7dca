"""Arguments of a command as a dataclass, with one sentence for what is wrong with them."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar, cast

import tyro

from ..errors import InputError, suggestion

T = TypeVar("T")

_BORDER = re.compile(r"^[│╭╰|+]|[│╮╯|+]$")
_FAILED = re.compile(r"Error parsing (\S+): (.*)")
_OPTION = re.compile(r"--[\w.-]+")


def parse(kind: type[T], arguments: Sequence[str], *, command: str, default: T | None = None, summary: str = "") -> T:
    """Return the arguments of a command.

    Args:
        kind: Dataclass whose fields are the options.
        arguments: What follows the command.
        command: Its name, for the help.
        default: Values that hold where nothing is given.
        summary: What the command does.

    Raises:
        InputError: Some argument is unknown or of the wrong type.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed = tyro.cli(
                kind,
                args=list(arguments),
                default=default,
                prog=f"steadeq {command}",
                description=summary,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as exit:
        if not exit.code:
            raise
        raise InputError(_sentence(errors.getvalue(), arguments, _options(kind, default, command))) from None
    return cast(T, parsed)


def _options(kind: type[T], default: T | None, command: str) -> list[str]:
    """Return the names of all options, read off the help."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], default=default, prog=command, config=(tyro.conf.FlagCreatePairsOff,))
    return sorted({"--help", *_OPTION.findall(text.getvalue())})


def _sentence(box: str, arguments: Sequence[str], options: list[str]) -> str:
    """Return what tyro's box of several lines says, as one sentence."""
    for argument in arguments:
        name = argument.split("=")[0]
        if name.startswith("--") and name.replace("_", "-") not in options:
            return f"There is no option {name}.{suggestion(name, options)}"
    # The first line is the box's title, with a rule below it where boxes are of ASCII; another one ends the message.
    lines = [_BORDER.sub("", line).strip() for line in box.splitlines()][1:]
    if lines and not lines[0].strip("-─="):
        lines = lines[1:]
    rules = [index for index, line in enumerate(lines) if line and not line.strip("-─=")] or [len(lines)]
    message = " ".join(line for line in lines[: rules[0]] if line)
    failed = _FAILED.match(message)
    if failed is None:
        return (message[:1].upper() + message[1:] or "The arguments make no sense").removesuffix(".") + "."
    name, reason = failed[1], failed[2]
    if not name.startswith("--"):
        # A check of a whole section, in our own words.
        return reason
    expected = next((line.removeprefix(name).strip() for line in lines[rules[0] :] if line.startswith(f"{name} ")), "")
    given = [value for option, values in _given(arguments) if option == name for value in values]
    return f"{name} is {' '.join(given)!r}; it must be {_describe(expected)}."


def _given(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each option with the values that follow it."""
    found: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument.partition("=")
            found.append((name.replace("_", "-"), [value] if value else []))
        elif found:
            found[-1][1].append(argument)
    return found


def _describe(metavar: str) -> str:
    """Return the type that tyro shows in its help, in words.

    Example:
        >>> _describe("{None}|INT"), _describe("{adam,sgd}"), _describe("INT INT")
        ('an integer or None', 'one of adam, sgd', 'an integer and an integer')
    """
    if metavar.startswith("{None}|"):
        return f"{_describe(metavar.removeprefix('{None}|'))} or None"
    if metavar.startswith("{"):
        return f"one of {metavar.strip('{}').replace(',', ', ')}"
    if metavar.startswith("["):
        return f"{_describe(metavar.strip('[]').split()[0])} each"
    return " and ".join(_WORDS.get(word, word) for word in metavar.split()) or "something else"


_WORDS = {"INT": "an integer", "FLOAT": "a number", "PATH": "a path", "STR": "a word"}
