"""Ctrl-C before anything is begun and after everything is over, which must neither be a traceback nor be swallowed.

This is imported before anything else, and itself imports nearly nothing: what comes before it cannot be protected.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


class ExitOnInterrupt:
    """Has Ctrl-C end the process while modules are imported: nothing is begun yet, and an import may swallow it."""

    def __enter__(self) -> None:
        # Who has a handler of their own, or ignores it, goes on to do so.
        self._previous = signal.getsignal(signal.SIGINT)
        self._is_ours = self._previous is signal.default_int_handler or isinstance(self._previous, StopOnInterrupt)
        if self._is_ours:
            try:
                signal.signal(signal.SIGINT, _leave)
            except ValueError:
                # Only the main thread may handle signals.
                self._is_ours = False

    def __exit__(self, *error: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, self._previous)


class StopOnInterrupt:
    """Has the first Ctrl-C stop a command, and no other one disturb its leaving, or the end of the process after it."""

    def __init__(self) -> None:
        self._has_stopped = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._has_stopped:
            self._has_stopped = True
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)

    def __exit__(self, *error: object) -> None:
        if signal.getsignal(signal.SIGINT) is self:
            # Python takes back handlers of its own before it ends, but not that it is ignored.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    try:
        # In a terminal, "loading ..." is still on the line.
        begin = "\n" if sys.stderr.isatty() else ""
        print(f"{begin}steadeq: Stopped before anything was done.", file=sys.stderr, flush=True)
    finally:
        # Whether or not somebody is there to read it.
        os._exit(130)
