"""The command `steadeq`: finds the module of a command and turns its errors into a sentence and an exit code.

Importing torch takes seconds, so nothing here imports it: the list of commands must come at once.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ... import __version__
from ..._internal.validation import suggestion
from ..errors import HelpShown, InputError, Interrupted, RunError, printable

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
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode shows a question mark rather than nothing at all.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_PrintableFormatter("%(message)s"))
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
        return 1
    except OSError as error:
        # What the system refuses anywhere: a folder that may not be read, a name that is too long, a full disk.
        if error.filename is None:
            return _fail(f"The output could not be written: {error.strerror or error}.", 1)
        name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else error.filename
        return _fail(f"{name} cannot be used: {error.strerror or error}.", 2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        reason = next(iter(str(error).splitlines()), "")
        return _fail(f"There is not enough memory; ask for less, such as a smaller batch. {reason}".rstrip(), 1)
    finally:
        _drop_lost_output()


def _dispatch(arguments: Sequence[str]) -> int:
    for argument in arguments:
        if "\0" in argument:
            raise InputError(f"{argument!r} has a zero byte, which no argument can have.")
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
    with _leaving_at_once():
        command = _load(name)
    return command(rest)


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Have Ctrl-C end the process while modules are imported: nothing is begun yet, and an import may swallow it."""

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(_fail("Stopped; nothing was begun.", 130))

    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_ours:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _load(name: str) -> Callable[[Sequence[str]], int]:
    try:
        return importlib.import_module(_ELSEWHERE.get(name, f"{__package__}.{name}")).run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("steadeq"):
            raise
        raise InputError(f"The command {name!r} needs {error.name}: pip install 'steadeq[train]'.") from error


class _PrintableFormatter(logging.Formatter):
    """Says nothing that changes a terminal, whatever files and folders are called."""

    def format(self, record: logging.LogRecord) -> str:
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
