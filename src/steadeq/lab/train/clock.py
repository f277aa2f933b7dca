"""Time that counts what was asked of a GPU."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Return the time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
