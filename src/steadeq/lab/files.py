"""Files: written completely or not at all, and read only if they are regular files."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import InputError

# Writing


def write_atomically(path: Path, content: str | bytes, *, is_new: bool = False) -> None:
    """Write a file so that a crash leaves the old content or the new; FileExistsError if it must be new and is not.

    Links are followed, unless they lead in a circle. Devices such as /dev/null, and pipes that have a reader, are
    written to directly; a pipe without a reader is not waited for.
    """
    content = content.encode() if isinstance(content, str) else content
    if not is_new and _is_special(path):
        _write_through(path, content)
        return
    path = _target(path)
    if not (is_new and _write_unnamed(path, content)):
        with replacing(path, is_new=is_new) as file:
            file.write(content)
    sync(path.parent)


def apply_umask(path: Path) -> None:
    """Let those read a temporary file who may read other files; such files are made for their owner alone."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _target(path: Path) -> Path:
    """Return where links lead to."""
    # Unlike `Path.resolve`, this has one answer for a circle in all versions of Python: a link.
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def _is_special(path: Path) -> bool:
    """Return whether something is there that is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _write_through(path: Path, content: bytes) -> None:
    """Write to a device, or to a pipe that somebody reads."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "no process reads from it", str(path)) from error
    # From here on the reader sets the pace.
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, is_new: bool = False) -> Iterator[BinaryIO]:
    """Write a temporary file beside another, whose place it takes when it is whole."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        apply_umask(Path(temporary))
        if is_new:
            # Who makes the empty file may fill it; unlike a hard link, every file system can do that.
            path.touch(exist_ok=False)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_unnamed(path: Path, content: bytes) -> bool:
    """Write a file that gets its name when it is whole, so that a crash leaves nothing behind; False if it cannot be.

    Only Linux can do that, and not in all file systems.
    """
    if not hasattr(os, "O_TMPFILE"):
        return False
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with os.fdopen(os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            # Only if it is given a folder, which does not matter here, os.link looks through what is in /proc.
            os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=folder)
    except FileExistsError:
        raise
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


# Reading

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
    """Return the content of a file, which must be small."""
    with open_plain(path, max_bytes=max_bytes) as file:
        try:
            return file.read()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def is_there(path: Path) -> bool:
    """Return whether a file or a folder exists; if the system does not permit to look, that is an error."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    return True


def one_line(text: object) -> str:
    r"""Return a message of another program as part of a sentence: short, and without control characters.

    Example:
        >>> one_line("Not\r\n \x1b[31mFound.")
        'Not [31mFound'
    """
    printable = "".join(character if character.isprintable() else " " for character in str(text)[:1000])
    return " ".join(printable.split())[:200].removesuffix(".")


def check_no_link(path: Path) -> None:
    """Refuse a link, which could lead to writing or deleting files elsewhere."""
    if path.is_symlink():
        raise InputError(
            f"{path} is a link, and runs do not write through links; remove it, or link to the whole folder."
        )


def check_plain(path: Path) -> None:
    """Refuse anything but a regular file: a link, or a pipe, which might be waited for forever."""
    check_no_link(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a plain file; remove it.")
