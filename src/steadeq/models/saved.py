"""Files of `torch.save` that somebody else wrote, looked at before PyTorch reads them.

With `weights_only=True` PyTorch executes nothing of a file. It makes what the file asks for, though, and few bytes can
ask for all memory, or for hours.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

_MAX_INSTRUCTIONS = 1_000_000
"""The most instructions that are looked at; a tensor takes about thirty."""
_NUM_LEGACY = 5
"""Pickles at the start of a file as PyTorch wrote them before 1.6; the numbers of the tensors follow."""


def check_saved(path: Path, *, is_known: Callable[[str, Any], bool] | None = None) -> None:
    """Refuse a file that would take more memory than it has bytes, or more instructions than weights need.

    Args:
        path: The file.
        is_known: Takes the name of an instruction of a pickle and its argument, and returns whether it may be there; by
            default all may be but those that make large things of small ones.

    Raises:
        ValueError: It is refused, or damaged.
    """
    is_known = is_known or _is_harmless
    count = 0
    with ExitStack() as stack:
        for program in _programs(path, stack):
            for instruction, argument, _ in pickletools.genops(program):
                count += 1
                if not is_known(instruction.name, argument) or count > _MAX_INSTRUCTIONS:
                    raise ValueError(f"{path.name} holds more than weights and plain values.")


def _programs(path: Path, stack: ExitStack) -> Iterator[IO[bytes]]:
    """Yield the pickles of a file, one after another."""
    file = stack.enter_context(path.open("rb"))
    is_archive = file.read(4) == b"PK\x03\x04"
    file.seek(0)
    if not is_archive:
        for _ in range(_NUM_LEGACY):
            # What ends before is no such file, which PyTorch tells best.
            if file.peek(1):
                yield file
        return
    archive = stack.enter_context(zipfile.ZipFile(file))
    members = archive.infolist()
    is_stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    if not is_stored or sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError(f"{path.name} is compressed.")
    (program,) = (member for member in members if member.filename.endswith("/data.pkl"))
    yield stack.enter_context(archive.open(program))


def _is_harmless(name: str, argument: Any) -> bool:
    # Which makes bytes of a text, as often as it is asked to.
    return not (name == "GLOBAL" and argument == "_codecs encode")
