"""Files that somebody else wrote: only plain ones are opened, and what cannot be read is said in a sentence."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import InputError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_plain(path: Path | str, *, max_bytes: int | None = None) -> BinaryIO:
    """Open a file to read its bytes.

    It is looked at before: a pipe would be waited for until somebody writes to it, and a device may never end.

    Args:
        path: The file, or a link to it.
        max_bytes: The most bytes that it may have; by default any number.
    """
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise InputError(f"{path} cannot be read: it is {kind}, not a file.")
        if max_bytes is not None and status.st_size > max_bytes:
            raise InputError(f"{path} is refused: it has {status.st_size:,} bytes, and the limit is {max_bytes:,}.")
        return path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def read_plain(path: Path | str, *, max_bytes: int) -> bytes:
    """Return what is in a file, which may not be large."""
    with open_plain(path, max_bytes=max_bytes) as file:
        try:
            return file.read()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def is_there(path: Path) -> bool:
    """Return whether there is a file or a folder; not to be allowed to know is another matter, and an error."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    return True


def one_line(text: object) -> str:
    r"""Return what somebody else says as a part of a sentence: short, and without what changes a terminal.

    Example:
        >>> one_line("Not\r\n \x1b[31mFound.")
        'Not [31mFound'
    """
    printable = "".join(character if character.isprintable() else " " for character in str(text)[:1000])
    return " ".join(printable.split())[:200].removesuffix(".")
