"""Several runs at a time, each in a process of its own, with their progress in one place."""

from __future__ import annotations

import multiprocessing
import os
import queue as queues
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch

from ..errors import Interrupted, RunError
from ..signals import interrupts_held_back, leave_interrupts_to_parent
from ..train import Process, Run, TrainConfig
from ..train.display import AbstractDisplay
from ..train.interruption import Interruption
from .completion import complete_run

_SHOW_SECONDS = 0.2


class _SentDisplay(AbstractDisplay):
    """Sends what is to be shown to the process that shows it."""

    def __init__(self, messages: Queue[Any]) -> None:
        self._messages, self._sent, self._num_steps = messages, 0.0, 0
        self._parent = os.getppid()

    def begin(self, title: str, num_steps: int, step: int) -> None:
        self._num_steps = num_steps
        self._messages.put(("begin", title, num_steps, step))

    def advance(self, title: str, step: int, values: dict[str, float]) -> None:
        if os.getppid() != self._parent:
            # Nobody is left to show this to, and the next command would find the run's folder locked.
            os._exit(1)
        if time.monotonic() - self._sent > _SHOW_SECONDS or step == self._num_steps:
            self._sent = time.monotonic()
            self._messages.put(("advance", title, step, values))

    def say(self, text: str) -> None:
        self._messages.put(("say", text))

    def close(self) -> None:
        pass


def complete_runs(configs: Mapping[Path, TrainConfig], *, num_jobs: int, display: AbstractDisplay) -> list[Run]:
    """Return finished runs; what is finished already is reused, what was interrupted goes on.

    Args:
        configs: By the folder of their run.
        num_jobs: How many at a time; they share the processors.
        display: Where progress is shown.

    Raises:
        Interrupted: It was asked to stop; every run has saved its state.
        RunError: A run had to stop.
    """
    context = multiprocessing.get_context("spawn")
    messages: Queue[Any] = context.Queue()
    num_threads = max(1, (os.cpu_count() or 1) // num_jobs)
    with (
        Interruption() as interruption,
        display,
        ProcessPoolExecutor(
            num_jobs, mp_context=context, initializer=_set_up, initargs=(messages, num_threads)
        ) as pool,
    ):
        with interrupts_held_back():
            futures = [pool.submit(_complete, config, path) for path, config in configs.items()]
        waiting: set[Future[None]] = set(futures)
        while waiting:
            _, waiting = wait(waiting, timeout=_SHOW_SECONDS)
            _show(messages, display)
            if interruption.requested:
                # Workers save what they are at, and end.
                for worker in multiprocessing.active_children():
                    worker.terminate()
                pool.shutdown(cancel_futures=True)
                raise Interrupted("Stopped; every run has saved its state, and the same command continues them.")
            errors = [f.exception() for f in futures if f.done()]
            error = next((e for e in errors if e is not None), None)
            if error is not None:
                pool.shutdown(cancel_futures=True)
                if isinstance(error, BrokenProcessPool):
                    raise RunError("A process died; the same command continues from its latest checkpoint.") from error
                raise error
    return [Run.open(path) for path in configs]


def _show(messages: Queue[Any], display: AbstractDisplay) -> None:
    while True:
        try:
            name, *arguments = messages.get_nowait()
        except queues.Empty:
            return
        getattr(display, name)(*arguments)


def _set_up(messages: Queue[Any], num_threads: int) -> None:
    global _messages
    _messages = messages
    leave_interrupts_to_parent()
    torch.set_num_threads(num_threads)


_messages: Queue[Any] | None = None
"""Of a worker: where its display sends to."""


def _complete(config: TrainConfig, path: Path) -> None:
    assert _messages is not None
    try:
        complete_run(config, path, process=Process(), display=_SentDisplay(_messages))
    except Interrupted:
        # The pool would wait for a worker that ignores its end; all is saved.
        os._exit(0)
