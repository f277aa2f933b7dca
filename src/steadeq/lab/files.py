"""Files that are either there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, is_new: bool = False) -> None:
    """Write a file so that a crash leaves the old content or the new; FileExistsError if it must be new and is not.

    Links are followed. What is there and is no file, such as a pipe or /dev/null, is written to.
    """
    content = content.encode() if isinstance(content, str) else content
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir() and not is_new:
        path.write_bytes(content)
        return
    # A temporary file beside it takes its place when it is whole.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
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
    sync(path.parent)


def apply_umask(path: Path) -> None:
    """Let those read a temporary file who may read other files; such files are made for their owner alone."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def sync(path: Path) -> None:
    """Have a file's content, or a folder's entries, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
