"""Downloaded archives, from which only regular files in folders are extracted.

An archive with a link, a device or a name that leads elsewhere is refused as a whole. Every name is checked before it
becomes a path, and no existing file is opened.
"""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from ..errors import RunError
from ..files import one_line, open_plain

MAX_UNPACKED = 1 << 32
"""The most bytes of what an archive holds, seven times as many as the largest one of the catalog."""
MAX_MEMBERS = 10_000
"""The most files and folders of an archive."""
_BLOCK = 1 << 16
_MAX_HEADER = 1 << 20
"""The most bytes that are read at once; the module `tarfile` holds headers in memory, however long they claim to be."""


class _RefusedError(Exception):
    """An archive is damaged, or holds what no archive of data needs."""


@dataclass(frozen=True, kw_only=True)
class _Member:
    """A file or a folder in an archive."""

    name: str
    size: int
    is_folder: bool
    open: Callable[[], IO[bytes] | None]


def extract(archive: Path, folder: Path) -> None:
    """Put what a .zip or .tar.gz file holds into a folder; errors of the disk are left to the caller.

    Raises:
        RunError: The archive is damaged, or holds something else than plain files and folders.
    """
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    try:
        _extract(members(archive), folder)
    except _RefusedError as error:
        raise RunError(f"{archive} cannot be unpacked: {error}.") from None
    except Exception as error:
        # Errors of the disk have a number. Damaged archives raise nearly everything, from EOFError to RecursionError.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise RunError(f"{archive} cannot be unpacked: {one_line(error) or type(error).__name__}.") from error


def _extract(members: Iterator[_Member], folder: Path) -> None:
    files: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    total = 0
    for number, member in enumerate(members, start=1):
        path = _checked_path(member.name)
        total += member.size
        if number > MAX_MEMBERS:
            raise _RefusedError(f"it holds more than {MAX_MEMBERS:,} files")
        if member.size < 0 or total > MAX_UNPACKED:
            raise _RefusedError(f"it holds more than {MAX_UNPACKED:,} bytes")
        above = {parent for parent in path.parents if parent.parts}
        is_twice = path in files if member.is_folder else path in files or path in folders
        if is_twice or above & files:
            raise _RefusedError(f"it has {member.name!r} twice")
        folders |= {*above, path} if member.is_folder else above
        target = folder / path
        if member.is_folder:
            target.mkdir(parents=True, exist_ok=True)
            continue
        files.add(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(member, target)


def _checked_path(name: str) -> PurePosixPath:
    """Return the path of a member below the folder."""
    # Some systems take a backslash for a slash, and a colon for the end of the name of a drive.
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or not path.parts or ".." in path.parts or ":" in name or not name.isprintable():
        raise _RefusedError(f"{one_line(repr(name))} is not the name of a file inside the folder")
    return path


def _write(member: _Member, target: Path) -> None:
    source = member.open()
    if source is None:
        raise _RefusedError(f"{member.name!r} has no content")
    num_bytes = 0
    with source, target.open("xb") as file:
        while block := source.read(_BLOCK):
            num_bytes += len(block)
            if num_bytes > member.size:
                break
            file.write(block)
    if num_bytes != member.size:
        raise _RefusedError(f"{member.name!r} does not have the {member.size:,} bytes that it should have")


# Tar


class _Unpacked(gzip.GzipFile):
    """A compressed tar file that refuses to be read in pieces of any size, or for ever."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MAX_HEADER or self.tell() > MAX_UNPACKED:
            raise _RefusedError("it has headers that are too large")
        return super().read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        # To know whether there is more, `tarfile` goes back by one byte; going back further would unpack it all again.
        if whence == io.SEEK_SET and not self.tell() - 1 <= offset <= MAX_UNPACKED:
            raise _RefusedError("its files are not one after another")
        return super().seek(offset, whence)


def _tar_members(archive: Path) -> Iterator[_Member]:
    with open_plain(archive) as packed, _Unpacked(fileobj=packed) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            if not (member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)) or member.issparse():
                raise _RefusedError(f"{member.name!r} is not a plain file (it may be a link or a device)")
            yield _Member(
                name=member.name,
                size=0 if member.isdir() else member.size,
                is_folder=member.isdir(),
                open=lambda member=member: _open_in_tar(tar, member, archive.parent),
            )
        # To `tarfile`, a damaged header is the end. Only zeros may follow it, and then a checksum.
        while block := file.read(_BLOCK):
            if block.strip(b"\0"):
                raise _RefusedError("it goes on after its end")


def _open_in_tar(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> IO[bytes] | None:
    # The module itself refuses some of what is dangerous, where it is recent enough: a second line of defense.
    check = getattr(tarfile, "data_filter", None)
    if check is not None:
        check(member, str(folder))
    return tar.extractfile(member)


# Zip


def _zip_members(archive: Path) -> Iterator[_Member]:
    with open_plain(archive) as packed, zipfile.ZipFile(packed) as file:
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _RefusedError(f"{member.filename!r} is not a plain file (it may be a link or a device)")
            if member.flag_bits & 1:
                raise _RefusedError(f"{member.filename!r} is encrypted")
            # Others take as much memory as their header says.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _RefusedError(f"{member.filename!r} uses an unsupported compression method")
            # The module cuts names at a zero byte.
            yield _Member(
                name=member.orig_filename,
                size=member.file_size,
                is_folder=member.is_dir(),
                open=lambda member=member: file.open(member),
            )
