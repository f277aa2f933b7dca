"""Ctrl-C, kill and lost terminals are requests while a run goes on, and what they always were before and after."""

import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.train.runs import assert_same, final_state, latest, make_run, make_trainer, start, tiny_config, train

from steadeq.lab.errors import Interrupted
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.signals import Interruption
from steadeq.lab.train.display import Display

CONFIG = tiny_config()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_noted_and_nothing_stops(number):
    before = signal.getsignal(number)
    with Interruption() as interruption:
        assert not interruption.requested
        # A second kill is as patient as the first.
        for _ in range(1 if number == signal.SIGINT else 2):
            signal.raise_signal(number)
            assert interruption.requested
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once():
    with Interruption():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_restored_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Interruption():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_can_train_too():
    def work():
        with Interruption() as interruption:
            return interruption.requested

    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(work).result()


def test_what_a_process_ignores_it_goes_on_ignoring():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert not interruption.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class LostDisplay(Display):
    """A display whose reader goes away, or whose disk fills up, at one of its calls."""

    def __init__(self, call: str, error: BaseException) -> None:
        self.call, self.error = call, error

    def begin(self, title, num_steps, step):
        self._fail("begin")

    def advance(self, title, step, values):
        if step == 6:
            self._fail("advance")

    def __exit__(self, *error):
        self._fail("exit")

    def _fail(self, call):
        if call == self.call:
            raise self.error


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return final_state(make_run(tmp_path_factory, CONFIG))


@pytest.mark.parametrize(
    ("call", "error", "step"),
    [
        ("begin", BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)), 1),
        ("advance", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 7),
        ("advance", OSError(errno.EIO, os.strerror(errno.EIO)), 7),
        ("advance", ValueError("I/O operation on closed file."), 7),
        ("advance", SystemExit(1), 7),
    ],
    ids=["pipe", "disk", "terminal", "closed", "rich"],
)
def test_a_run_that_nobody_can_watch_saves_and_goes_on_later(call, error, step, whole, tmp_path):
    trainer = make_trainer(CONFIG, tmp_path / "run", display=LostDisplay(call, error))
    with pytest.raises(Interrupted, match="output could not be written"):
        trainer.train()
    assert latest(tmp_path / "run").step == step
    train(CONFIG, tmp_path / "run")
    assert_same(final_state(tmp_path / "run"), whole)


def test_a_display_that_fails_after_the_last_step_costs_nothing(tmp_path):
    trainer = make_trainer(CONFIG, tmp_path / "run", display=LostDisplay("exit", BrokenPipeError()))
    assert trainer.train()
    assert trainer.is_finished


def test_a_command_whose_reader_has_gone_saves_what_it_has(tmp_path):
    with start("train", "synthetic", "--out", str(tmp_path / "run"), "--log.spectrum-samples", "0") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 130
    assert "Broken pipe" in errors
    assert "Traceback" not in errors
    assert RunFolder(tmp_path / "run").checkpoints().steps()
