"""The command `steadeq`: finds the module of a command and turns its errors into a sentence and an exit code.

Importing torch takes seconds, so nothing here imports it: the list of commands must come at once.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ... import __version__
from ...checks import suggestion
from ..errors import HelpShown, InputError, Interrupted, RunError, printable
from ..extension import EXTENSIONS
from ..memory import lack_of_memory
from ..terminal import MANNERS, Work, clear_bar, in_manner
from .leaving import ExitOnInterrupt

_COMMANDS = {
    "demo": "train a looped block with and without the penalty, and write an HTML report (2 minutes)",
    "recipes": "list what can be trained",
    "train": "train a recipe, with progress, logs and checkpoints; Ctrl-C and kill are safe",
    "evaluate": "measure the task metric of a run or a model against the number of evaluations",
    "diagnose": "find out whether iterating a trained cell settles and helps, with its spectrum and residuals",
    "repair": "tune a trained cell that is right at its training depth only, into a new run",
    "generate": "write text with a language model, token by token",
    "convert": "convert an official checkpoint of locuslab/deq or torchdeq",
    "save": "save the model of a run for from_pretrained and the Hugging Face Hub, with a model card",
    "export": "write a model with a fixed number of evaluations as a file for torch.export or ONNX",
    "report": "compare runs in one HTML file",
    "data": "list data sets, where they are, and how to get them",
    "bench": "measure the overhead of the library next to its peers (in a checkout)",
    "completion": "print a script that completes commands and options at the TAB key",
}

_PATIENCE = 3.0
"""Seconds for which the processes of a job wait for the first one to say what is wrong."""

_USAGE = """steadeq: deep equilibrium models that stay stable

usage: steadeq COMMAND ...

{commands}

`steadeq COMMAND --help` lists the options of a command, `steadeq --version` prints the version.
All commands take --quiet (results and errors only) and --json (the result as JSON on standard output).
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
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode shows a question mark rather than nothing at all.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PrintableFormatter("%(message)s"))
    try:
        code = _dispatch(arguments)
        # A reader that has gone shows only when what is buffered is written.
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("Stopped at once; earlier checkpoints are intact.", 130)
    except Exception as error:
        code = _tell(error)
        if code is None:
            raise
        return code
    finally:
        _drop_lost_output()


def _dispatch(arguments: Sequence[str]) -> int:
    for argument in arguments:
        if "\0" in argument:
            raise InputError(f"{argument!r} contains a zero byte.")
    known = commands()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, known))
        print(_USAGE.format(commands="\n".join(f"  {name:{width}}  {text}" for name, (_, text) in known.items())))
        return 0
    if arguments[0] == "--version":
        print(f"steadeq {__version__}")
        return 0
    name, *rest = arguments
    if name not in known:
        meant = suggestion(name, [*known, "--help", "--version"])
        raise InputError(f"There is no command {name!r}.{meant} `steadeq --help` lists them all.")
    with in_manner([word for word in rest if word in MANNERS]):
        with ExitOnInterrupt(), Work(f"steadeq {name}: loading ..."):
            command = _load(name, known[name][0])
        return command([word for word in rest if word not in MANNERS])


def commands() -> dict[str, tuple[str, str]]:
    """Return the module of each command, and what the command does."""
    found = {name: (f"{__package__}.{name}", summary) for name, summary in _COMMANDS.items()}
    for extension in EXTENSIONS:
        found |= extension.commands
    return found


def _load(name: str, module: str) -> Callable[[Sequence[str]], int]:
    try:
        return importlib.import_module(module).run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("steadeq"):
            raise
        raise InputError(
            f"The command {name!r} needs {error.name}; install it with the extra `train`: pip install "
            "'steadeq[train]', or '.[train]' in a clone."
        ) from error


def _tell(error: Exception) -> int | None:
    """Say what went wrong and return the exit code; None for what nobody expected."""
    if isinstance(error, HelpShown):
        return 0
    if (lack := lack_of_memory(error)) is not None:
        return _fail(f"{lack} What was saved before is intact.", 1)
    for kind, code in ((InputError, 2), (RunError, 1), (Interrupted, 130)):
        if isinstance(error, kind):
            _let_the_first_process_speak()
            return _fail(str(error), code)
    if isinstance(error, BrokenPipeError):
        # The reader of our output has gone, as `head` does; nothing more can be said.
        return 1
    if isinstance(error, OSError):
        # What the system refuses anywhere: a folder that may not be read, a name that is too long, a full disk.
        if error.filename is None:
            return _fail(f"The output could not be written: {error.strerror or error}.", 1)
        name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else error.filename
        return _fail(f"{name} cannot be used: {error.strerror or error}.", 2)
    return None


def _let_the_first_process_speak() -> None:
    """Wait, in all processes of a job but the first: what all have to say is best said once.

    When a process ends, torchrun ends the others at once; who is still there after the wait has failed alone.
    """
    if os.environ.get("RANK", "0") != "0" and "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(_PATIENCE)


class PrintableFormatter(logging.Formatter):
    """Says nothing that changes a terminal, whatever files and folders are called, on a line without a bar."""

    def format(self, record: logging.LogRecord) -> str:
        clear_bar()
        return printable(super().format(record))


def _fail(message: str, code: int) -> int:
    # Nobody may be there to read it; the exit code still says it.
    with suppress(OSError, ValueError):
        print(f"steadeq: {printable(message)}", file=sys.stderr, flush=True)
    return code


def _open_missing_streams() -> None:
    """Have a standard stream that was closed before the start lead nowhere, rather than be None.

    In the order of their numbers, so that no file that is opened later gets the number of a standard stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (for as long as the process lives)


def _drop_lost_output() -> None:
    """Have what could not be written go nowhere, as Python would try again at its end, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except ValueError:
            pass  # closed
