import gc
import signal

import pytest
import torch

import steadeq.paper  # noqa: F401 (as the command does, so that the lab has its recipes and figures)

torch.set_num_threads(1)
# Started in the background, as by `nohup make test &`, tests and what they start would ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items):
    # The longest first, so that no process waits for them in the end.
    items.sort(key=lambda item: "torture" not in item.path.parts)


def pytest_collection_finish():
    # Thousands of collected tests make every garbage collection take half a second.
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
