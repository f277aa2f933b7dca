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

_BORDERS = re.compile(r"[│╭╮╰╯]")
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
    return sorted(set(_OPTION.findall(text.getvalue())))


def _sentence(box: str, arguments: Sequence[str], options: list[str]) -> str:
    """Return what tyro's box of several lines says, as one sentence."""
    for argument in arguments:
        name = argument.split("=")[0]
        if name.startswith("--") and name.replace("_", "-") not in options:
            return f"There is no option {name}.{suggestion(name, options)}"
    lines = [_BORDERS.sub("", line).strip() for line in box.splitlines()]
    # The first line is the box's title; a rule separates the message from advice.
    body: list[str] = []
    for line in lines[1:]:
        if line.startswith("──"):
            break
        body.append(line)
    message = " ".join(part for part in body if part) or "The arguments make no sense."
    return message[0].upper() + message[1:] + ("" if message.endswith(".") else ".")
