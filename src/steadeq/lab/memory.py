"""Recognizes errors that mean a lack of memory, and says so in a sentence."""

from __future__ import annotations

import errno
import re

from .errors import InputError, RunError

_SIGNS = re.compile(
    r"can(no|')t allocate memory|not enough memory|out of memory|storage size calculation overflowed", re.IGNORECASE
)
"""How PyTorch and the readers of files call it on a CPU, and PyTorch on a GPU."""
_AMOUNT = re.compile(r"tried to allocate ([\d.]+ ?[a-z]+)", re.IGNORECASE)


def lack_of_memory(error: BaseException) -> str | None:
    """Return a sentence if an error, or what it comes from, is a lack of memory, and None if it is anything else.

    Example:
        >>> lack_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."))
        'There is not enough memory (2.00 GiB more were asked for): use a smaller batch or a smaller model.'
        >>> lack_of_memory(RuntimeError("The memory format is not supported."))
    """
    cause: BaseException | None = error
    while cause is not None:
        if _is_lack(cause):
            found = _AMOUNT.search(str(cause))
            amount = f" ({found[1]} more were asked for)" if found else ""
            return f"There is not enough memory{amount}: use a smaller batch or a smaller model."
        cause = cause.__cause__
    return None


def _is_lack(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # What is said to users may quote their files.
    return not isinstance(error, (InputError, RunError)) and _SIGNS.search(str(error)) is not None
