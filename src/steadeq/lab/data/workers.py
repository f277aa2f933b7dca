"""Processes that share the work on a batch."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import torch

from ..errors import RunError
from ..signals import interrupts_held_back, leave_interrupts_to_parent
from .dataset import check_limited

R = TypeVar("R")

_MAX_WORKERS = 512

logger = logging.getLogger(__name__)


class Workers:
    """A number of processes, started when there is first something to do and ended with this one.

    They are spawned, not forked, as threads and CUDA do not survive a fork: scripts that use them need
    `if __name__ == "__main__":`. A copy made by pickle starts processes of its own.

    Args:
        num_workers: Number of processes; 0 for none, so that all is done in this process.
    """

    def __init__(self, num_workers: int = 0) -> None:
        check_workers(num_workers)
        self.num_workers = num_workers
        self._executor: ProcessPoolExecutor | None = None
        self._has_worked = False

    def map(self, function: Callable[..., R], *arguments: Sequence[Any]) -> list[R]:
        """Return what `map` does, as a list; the function must be one of a module, or a `partial` of one.

        If processes were killed, as the system does when memory is short or a job is told to end, this process does
        the work, and the next call starts new ones.
        """
        if not self.num_workers:
            return list(map(function, *arguments))
        # Some parts for each process, so that slow images even out.
        chunk = max(1, len(arguments[0]) // (4 * self.num_workers))
        try:
            # Processes start here.
            with interrupts_held_back():
                if self._executor is None:
                    context = multiprocessing.get_context("spawn")
                    self._executor = ProcessPoolExecutor(self.num_workers, mp_context=context, initializer=_begin)
                promises = self._executor.map(function, *arguments, chunksize=chunk)
            results = list(promises)
        except BrokenProcessPool as error:
            self.close()
            if not self._has_worked:
                raise RunError(
                    "The worker processes ended before they started work. Put the code of your script under "
                    '`if __name__ == "__main__":`, or set num_workers=0.'
                ) from error
            logger.warning("A worker process was killed; its batch is decoded in the main process.")
            return list(map(function, *arguments))
        self._has_worked = True
        return results

    def close(self) -> None:
        """End the processes; the next call of `map` starts new ones."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def __getstate__(self) -> dict[str, Any]:
        return {"num_workers": self.num_workers, "_executor": None, "_has_worked": False}


def check_workers(num_workers: int) -> None:
    """Refuse a number of processes that is too large for any machine."""
    check_limited("num_workers", num_workers, minimum=0, maximum=_MAX_WORKERS)


def _begin() -> None:
    """Prepare a new process."""
    leave_interrupts_to_parent()
    # Photographs often have EXIF data that nobody needs and Pillow warns about.
    warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it was killed, which an executor does not notice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
