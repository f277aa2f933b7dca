"""Ctrl-C and new processes: those who are being started cannot deal with it yet."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Have Ctrl-C wait, for this thread and for processes that start in this context.

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
