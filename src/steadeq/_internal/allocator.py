"""Memory of the CPU that is freed and needed again at once."""

from __future__ import annotations

from functools import cache

import torch


@cache
def keep_freed_memory() -> None:
    """Make the C library of Linux keep what is freed, instead of handing it back to the system.

    New memory is paid for page by page, which can take longer than the arithmetic on it. By default glibc hands back
    every block above 128 KB. Once a larger one was freed it keeps blocks up to that size, 32 MB at most, so one is
    allocated and freed: nothing is written to it, so that it costs nothing.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")
