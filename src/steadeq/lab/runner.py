"""Train several runs at a time; finished runs are reused, interrupted runs continue."""

from __future__ import annotations

import multiprocessing
import os
import queue as queues
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch

from .config import TrainConfig
from .errors import Diverged, InputError, Interrupted, RunError
from .run.folder import RunFolder
from .run.loading import load_trained
from .run.record import Evaluation, RunRecord
from .serialization import differences
from .signals import Interruption, interrupts_held_back, leave_interrupts_to_parent
from .train import Process, Trainer
from .train.display import Display, LastingDisplay, choose_display
from .train.evaluation import sweep_budgets, write_evaluation

_SHOW_SECONDS = 0.2
_ONLY_STOPS = "loop.stop_diverged"
"""What decides how long a run goes on, and nothing about its steps."""


# One run


def run_state(path: Path, config: TrainConfig) -> str:
    """Return how far a run is: missing, another config, begun, at step N, diverged or finished.

    Args:
        path: Folder of the run.
        config: What the run has to have trained.
    """
    if not RunFolder(path).exists():
        return "missing"
    record = RunRecord.read(path)
    if any(field != _ONLY_STOPS for field, _, _ in differences(record.config, config)):
        return "another config"
    if record.has_diverged:
        return "diverged"
    if record.is_finished:
        return "finished"
    return f"at step {record.step}" if record.step else "begun"


def complete_run(
    config: TrainConfig, path: Path | str, *, process: Process | None = None, display: Display | None = None
) -> None:
    """Train a run to its end, unless it is finished or has diverged.

    Args:
        config: What is trained.
        path: The run's folder; an interrupted run in it goes on.
        process: The process as one of several; alone if it is not given.
        display: Where progress is shown; the terminal if it is not given.

    Raises:
        InputError: The folder holds a run of another config, or the config does not fit its data.
    """
    path, process = Path(path), process or Process.alone(config.loop.device)
    display = choose_display() if display is None else display
    folder = RunFolder(path)
    if folder.exists():
        for field, old, new in differences(folder.config(), config):
            raise InputError(
                f"{path} holds another run: its {field} is {old}, not {new}; name another folder with --out."
            )
        if run_state(path, config) in ("finished", "diverged"):
            return
    trainer = Trainer(config, folder, process=process, display=display)
    if not folder.exists():
        RunFolder.create(path, config)
    with folder.lock(), suppress(Diverged):  # which is a result too
        trainer.resume()
        trainer.train()


def complete_evaluation(path: Path | str, *, budgets: Sequence[int]) -> Evaluation:
    """Return the evaluation of a finished run on its test split at some budgets; missing budgets are measured.

    The only budget of an explicit network is 0. An archived run, which has no weights, has the budgets that were
    measured before.

    Args:
        path: Folder of the run.
        budgets: Numbers of evaluations of the cell.
    """
    path = Path(path)
    record, steps = RunRecord.read(path), RunFolder(path).checkpoints().steps()
    known = record.evaluation
    if known is not None and (known.split != "test" or known.step != (steps[-1] if steps else record.step)):
        known = None
    missing = [budget for budget in budgets if known is None or known.row(budget) is None]
    if missing or known is None:
        if not steps:
            lacking = f", and no evaluation at {', '.join(map(str, missing))}" if known else ""
            raise RunError(f"{path} has no checkpoint{lacking}.")
        process = Process.alone()
        trained = load_trained(path, device=process.device)
        # The one row of an explicit network is that of 0, for which nobody can ask.
        found = sweep_budgets(trained, process, budgets=[budget for budget in missing if budget])
        rows = {row.max_evals: row for row in (*(() if known is None else known.rows), *found.rows)}
        known = replace(found, rows=tuple(rows[budget] for budget in sorted(rows)))
        write_evaluation(path, known)
    return replace(known, rows=tuple(row for budget in budgets if (row := known.row(budget)) is not None))


# Several runs


class _SentDisplay(Display):
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


def complete_runs(configs: Mapping[Path, TrainConfig], *, num_jobs: int, display: Display) -> None:
    """Train several runs to their ends, some at a time; the configs are given by folder.

    Finished runs are reused, interrupted runs continue.

    Args:
        configs: What to train in each folder.
        num_jobs: Number of runs that train at a time.
        display: Shows their progress.
    """
    context = multiprocessing.get_context("spawn")
    messages: Queue[Any] = context.Queue()
    # As many as torch would take here, which heeds OMP_NUM_THREADS: more threads than free cores wait for each other.
    num_threads = max(1, torch.get_num_threads() // num_jobs)
    pool = ProcessPoolExecutor(num_jobs, mp_context=context, initializer=_set_up, initargs=(messages, num_threads))
    with Interruption() as interruption, LastingDisplay(display, interruption.request) as shown, pool:
        with interrupts_held_back():
            futures = [pool.submit(_complete, config, path) for path, config in configs.items()]
        waiting: set[Future[None]] = set(futures)
        while waiting:
            _, waiting = wait(waiting, timeout=_SHOW_SECONDS)
            _show(messages, shown)
            if interruption.requested:
                _stop(pool)
                why = "" if interruption.reason is None else f", as {interruption.reason}"
                raise Interrupted(
                    f"Stopped{why}; every run has saved its state. Run the same command again to continue."
                )
            for error in filter(None, [future.exception() for future in futures if future.done()]):
                _stop(pool)
                if isinstance(error, BrokenProcessPool):
                    raise RunError(
                        "A process died. Run the same command again to continue from its latest checkpoint."
                    ) from error
                raise error


def _stop(pool: ProcessPoolExecutor) -> None:
    """Have the workers save what they are at, and end."""
    for worker in multiprocessing.active_children():
        worker.terminate()
    pool.shutdown(cancel_futures=True)


def _show(messages: Queue[Any], display: Display) -> None:
    with suppress(queues.Empty):
        while True:
            name, *arguments = messages.get_nowait()
            getattr(display, name)(*arguments)


def _set_up(messages: Queue[Any], num_threads: int) -> None:
    global _messages
    _messages = messages
    leave_interrupts_to_parent()
    torch.set_num_threads(num_threads)


_messages: Queue[Any] | None = None
"""Where the display of a worker sends to."""


def _complete(config: TrainConfig, path: Path) -> None:
    assert _messages is not None
    try:
        complete_run(config, path, process=Process.alone(config.loop.device), display=_SentDisplay(_messages))
    except Interrupted:
        # The pool would wait for a worker that ignores its end; all is saved.
        os._exit(0)
