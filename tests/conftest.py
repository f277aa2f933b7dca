import pytest
import torch

import steadeq.adjoint

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _quiet_backward(monkeypatch):
    # The warning comes once per process, so which test would meet it depends on their order.
    monkeypatch.setattr(steadeq.adjoint, "_has_warned", True)
