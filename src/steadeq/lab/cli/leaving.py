"""Ctrl-C before anything is begun, which must neither be a traceback nor be swallowed.

This is imported before anything else, and itself imports nearly nothing: what comes before it cannot be protected.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


class LeavingAtOnce:
    """Has Ctrl-C end the process while modules are imported: nothing is begun yet, and an import may swallow it."""

    def __enter__(self) -> None:
        # Who has a handler of their own, or ignores it, goes on to do so.
        self._is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_ours:
            try:
                signal.signal(signal.SIGINT, _leave)
            except ValueError:
                # Only the main thread may handle signals.
                self._is_ours = False

    def __exit__(self, *error: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    try:
        print("steadeq: Stopped; nothing was begun.", file=sys.stderr, flush=True)
    finally:
        # Whether or not somebody is there to read it.
        os._exit(130)
