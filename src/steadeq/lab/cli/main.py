"""The command `steadeq`: finds the module of a command and turns its errors into a sentence and an exit code.

Importing torch takes seconds, so nothing here imports it: the list of commands must come at once.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence

from ... import __version__
from ..._internal.validation import suggestion
from ..errors import HelpShown, InputError, Interrupted, RunError

COMMANDS = {
    "demo": "regularized against unregularized on embedded data, then an HTML report (2 minutes)",
    "recipes": "what can be trained",
    "train": "train a recipe: progress, logs, checkpoints; Ctrl-C and kill are safe",
    "evaluate": "task metric of a run or a model against the number of evaluations",
    "diagnose": "is it safe to iterate: spectrum, Jacobian norm, residual curves and evaluations of each sample",
    "generate": "text from a language model, token by token",
    "reproduce": "a table or figure of the paper",
    "convert": "an official checkpoint of locuslab/deq or torchdeq as a model of steadeq",
    "report": "one HTML file that compares runs",
    "data": "what data is there, where it is looked for, how to get it",
}

_ELSEWHERE = {"reproduce": "steadeq.paper.command"}
"""Modules of commands that are not beside this one. By name, as this floor does not know the one above it."""

_USAGE = """steadeq: deep equilibrium models that stay stable

usage: steadeq COMMAND ...

{commands}

`steadeq COMMAND --help` says more, `steadeq --version` which version this is.
On many processes: torchrun --nproc-per-node N -m steadeq train RECIPE ...
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: What follows the name of the program; by default those of this process.

    Returns:
        The exit code: 0 done, 1 a run had to stop, 2 bad input, 130 interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode shows a question mark rather than nothing at all.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        code = _dispatch(arguments)
        # A reader that has gone shows only when what is buffered is written.
        sys.stdout.flush()
        return code
    except HelpShown:
        return 0
    except InputError as error:
        return _fail(str(error), 2)
    except RunError as error:
        return _fail(str(error), 1)
    except Interrupted as error:
        return _fail(str(error), 130)
    except KeyboardInterrupt:
        return _fail("Stopped at once; what was saved before is intact.", 130)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        print(_USAGE.format(commands="\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())))
        return 0
    if arguments[0] == "--version":
        print(f"steadeq {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        known = suggestion(name, [*COMMANDS, "--help", "--version"])
        raise InputError(f"There is no command {name!r}.{known} `steadeq --help` lists them all.")
    return _load(name)(rest)


def _load(name: str) -> Callable[[Sequence[str]], int]:
    try:
        return importlib.import_module(_ELSEWHERE.get(name, f"{__package__}.{name}")).run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("steadeq"):
            raise
        raise InputError(f"The command {name!r} needs {error.name}: pip install 'steadeq[train]'.") from error


def _fail(message: str, code: int) -> int:
    print(f"steadeq: {message}", file=sys.stderr)
    return code
