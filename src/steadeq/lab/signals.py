"""Ctrl-C, kill, lost terminals: requests to finish the step, save and exit; worker processes ignore them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType


class Interruption:
    """Notes SIGINT, SIGTERM and SIGHUP while its context lasts; a second Ctrl-C stops at once.

    Signals that the process ignores, such as SIGHUP under `nohup`, stay ignored.
    """

    def __init__(self) -> None:
        self.requested = False
        self.reason: str | None = None
        """Why it was requested, if it was not a signal."""
        self._previous: dict[int, object] = {}

    def request(self, reason: str) -> None:
        """Request a stop, as a signal does."""
        self.requested, self.reason = True, reason

    def __enter__(self) -> Interruption:
        # Only the main thread may handle signals; elsewhere they keep their meaning.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            # Whoever handled it before knows whether it stops the process for good.
            previous = self._previous[number]
            if callable(previous):
                previous(number, frame)
                return
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delay Ctrl-C for this thread and for processes that start in this context.

    The processes inherit it, so that none of them ends with a traceback while it imports its modules; each calls
    `leave_interrupts_to_parent` when it is ready.
    """
    # Multiprocessing starts this with its first process, and would let signals through again afterwards.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C in this process: it reaches all processes of a terminal, and the main one decides what to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
