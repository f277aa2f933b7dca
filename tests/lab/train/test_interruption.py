"""Ctrl-C and kill are requests while a run goes on, and what they always were before and after."""

import signal
import threading

import pytest

from steadeq.lab.signals import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_is_noted_and_nothing_stops(number):
    before = signal.getsignal(number)
    with Interruption() as interruption:
        assert not interruption.requested
        signal.raise_signal(number)
        assert interruption.requested
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once():
    with Interruption():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_kill_is_as_patient_as_the_first():
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interruption.requested


def test_handlers_are_restored_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Interruption():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_can_train_too():
    failures = []

    def work():
        try:
            with Interruption() as interruption:
                assert not interruption.requested
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
