"""What a command shows beside its result: that it is at work, and for how much longer.

A process runs one command, so that its manner (`--quiet`, `--json`) is a fact of the process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

_BAR_SECONDS, _LINE_SECONDS, _CELLS = 0.1, 10.0, 20
_CLEAR = "\r\x1b[K"


@dataclass
class _Manner:
    is_quiet: bool = False
    is_json: bool = False
    answer: Any = None
    has_bar: bool = False


_manner = _Manner()

MANNERS = {
    "--quiet": "Show the result and errors only, without progress and notes.",
    "--json": "Print the result as JSON on standard output, for scripts; everything else goes to standard error.",
}
"""Options that all commands have."""


@contextmanager
def in_manner(options: Sequence[str]) -> Iterator[None]:
    """Run a command with some of the options that all commands have."""
    global _manner
    before, _manner = _manner, _Manner("--quiet" in options, "--json" in options)
    try:
        if not _manner.is_json:
            yield
            return
        with redirect_stdout(sys.stderr):
            yield
        print(json.dumps(_manner.answer, indent=2, default=str))
    finally:
        _manner = before


def is_quiet() -> bool:
    """Return whether only results and errors are wanted."""
    return _manner.is_quiet


def note(text: str) -> None:
    """Print a line that explains a result, unless only the result is wanted."""
    if not _manner.is_quiet:
        print(text)


def answer(content: Any) -> None:
    """Take the result of the command as `--json` prints it."""
    _manner.answer = content


def clear_bar() -> None:
    """Clear the line of a bar, if there is one, so that another line can be written; the bar comes back below it."""
    if _manner.has_bar:
        Work.write(_CLEAR)


class Work:
    """Shows on standard error that something is going on: a bar in a terminal, and elsewhere a line every ten seconds.

    In a terminal it is gone when the work is done. A reader that has gone, or a full disk, does not stop the work.
    """

    def __init__(self, title: str, num_parts: int = 0) -> None:
        """Show that work begins.

        Args:
            title: What is done.
            num_parts: How much of it there is, in units that take about the same time; 0 if that is not known.
        """
        self._title, self._num_parts, self._done, self._note = title, num_parts, 0, ""
        # The first process speaks for all.
        is_shown = not _manner.is_quiet and os.environ.get("RANK", "0") == "0"
        self._is_bar = is_shown and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._is_line = is_shown and not self._is_bar
        self._began = self._shown = time.monotonic()
        self._show(is_first=self._is_bar)

    def expect(self, num_parts: int) -> None:
        """Set how much work there is, once that is known."""
        self._num_parts = num_parts
        self._show()

    def advance(self, num_parts: int = 1) -> None:
        """Show that more parts are done."""
        self._done += num_parts
        self._show()

    def doing(self, note: str) -> None:
        """Show what is done now."""
        self._note = note
        self._show(is_first=self._is_bar)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""
        clear_bar()
        _manner.has_bar = False

    def _show(self, *, is_first: bool = False) -> None:
        moment = time.monotonic()
        if not is_first and moment - self._shown < (_BAR_SECONDS if self._is_bar else _LINE_SECONDS):
            return
        self._shown = moment
        parts = []
        if self._num_parts:
            share = min(self._done / self._num_parts, 1.0)
            if self._is_bar:
                parts.append(f"[{'#' * round(_CELLS * share):.<{_CELLS}}]")
            if self._is_bar or self._done:
                parts.append(f"{share:.0%}")
            if self._done and share < 1:
                parts.append(f"{describe_seconds((moment - self._began) * (1 / share - 1))} left")
        if self._note:
            parts.append(self._note)
        if self._is_bar:
            _manner.has_bar = True
            # A line that wraps could not be written over. The end of a long title is of least use.
            width = shutil.get_terminal_size().columns - 1
            title = self._title[: max(width - sum(len(part) + 2 for part in parts), 8)]
            self.write(f"{_CLEAR}{'  '.join([title, *parts])[:width]}")
        elif self._is_line:
            self.write(f"{'  '.join([self._title, *parts])}\n")

    @staticmethod
    def write(text: str) -> None:
        """Write to standard error, whether or not somebody reads it."""
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def describe_seconds(seconds: float) -> str:
    """Return a time as people write it.

    Example:
        >>> describe_seconds(75), describe_seconds(3675)
        ('1:15', '1:01:15')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
