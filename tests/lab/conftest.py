import signal

import pytest


@pytest.fixture
def _in_seconds():
    """Fail, rather than wait for ever for somebody to write into a pipe."""

    def give_up(*_):
        raise TimeoutError("It takes for ever.")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
