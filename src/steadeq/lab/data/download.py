"""Downloads: an interrupted transfer can continue, and a file is used only after its checksum agrees."""

from __future__ import annotations

import errno
import http.client
import os
import stat
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, RunError
from ..files import is_there, one_line
from . import locations
from .archives import extract

Progress = Callable[[str, int, int | None], None]
"""Takes a name, how many bytes have arrived, and how many there are, if that is known."""

_BLOCK = 1 << 16
_TIMEOUT = 30.0
"""Seconds of silence after which a server counts as gone."""
MAX_BYTES = 1 << 30
"""The largest file that is fetched, five times as large as any of the catalog."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file to fetch, and where it goes."""

    url: str
    """Address of the file."""
    md5: str
    """MD5 checksum of the file."""
    target: str
    """The path, below the folder of all data, of the file; or of the folder that the archive holds."""
    is_archive: bool = False
    """Whether the file is an archive that is to be unpacked."""

    def obtain(self, folder: Path, progress: Progress | None = None) -> Path:
        """Return the target, fetched and unpacked if it was not there."""
        target = folder / self.target
        if not self.is_archive:
            fetch(self.url, target, md5=self.md5, progress=progress)
        elif not is_there(target):
            archive = folder / self.url.rpartition("/")[2]
            fetch(self.url, archive, md5=self.md5, progress=progress)
            unpack(archive, target)
            archive.unlink()
        return target


def fetch(url: str, path: Path, *, md5: str, progress: Progress | None = None) -> None:
    """Fetch a file, unless it is there.

    What has arrived is kept in a file ending in .part, and a later call asks for the rest.

    Raises:
        InputError: Another file is there.
        RunError: The transfer failed; calling this again goes on where it ended.
    """
    if is_there(path):
        if locations.md5(path) != md5:
            raise InputError(f"{path} exists and differs from the file at {url} (by MD5): move it away first.")
        return
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _transfer(url, part, progress or (lambda *_: None))
        found = locations.md5(part)
        if found != md5:
            part.unlink()
            raise RunError(
                f"The download from {url} has the MD5 checksum {found} instead of {md5} and was deleted; try again."
            )
        os.replace(part, path)
    except OSError as error:
        raise _disk_error(part, error) from error


def unpack(archive: Path, target: Path) -> None:
    """Unpack the folder of the target's name that a .zip or .tar.gz file holds; it appears whole or not at all."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name[:40]}-") as temporary:
            extract(archive, Path(temporary))
            inside = Path(temporary) / target.name
            if not inside.is_dir():
                raise RunError(f"{archive} does not hold a folder {target.name}.")
            os.replace(inside, target)
    except OSError as error:
        raise _disk_error(target, error) from error


def _transfer(url: str, part: Path, progress: Progress) -> None:
    """Append to a file what it lacks; errors of the disk are left to the caller."""
    name = part.name.removesuffix(".part")
    done = _size_of(part)
    response = _request(url, done)
    if response is None:
        return
    with response, open(part, "ab", opener=_open_no_link) as file:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            # The server cannot go on in the middle, and sends all of it.
            file.truncate(done := 0)
        total = _total(response, done)
        progress(name, done, total)
        while block := _receive(response, url):
            done += len(block)
            if max(done, total or 0) > MAX_BYTES:
                part.unlink()
                raise RunError(f"{url} sends more than {MAX_BYTES:,} bytes, more than any file of the catalog.")
            file.write(block)
            progress(name, done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise RunError(
            f"The transfer of {url} ended after {done} of {total} bytes; run the same command again to continue."
        )


def _size_of(part: Path) -> int:
    """Return how many bytes have arrived."""
    try:
        status = part.lstat()
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            f"{part} is a link or not a file, and the download would be written there: move it away first."
        )
    return status.st_size


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _total(response: http.client.HTTPResponse, done: int) -> int | None:
    """Return how many bytes there will be, if the server says so in a way that makes sense."""
    length = response.headers.get("Content-Length", "")
    return done + int(length) if length.isascii() and length.isdigit() and len(length) < 20 else None


def _request(url: str, begin: int) -> http.client.HTTPResponse | None:
    """Ask for a file from some byte on; return None if it has no more."""
    headers = {"User-Agent": "steadeq"} | ({"Range": f"bytes={begin}-"} if begin else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and begin:
            return None
        says = one_line(f"{error.code} {error.reason}")
        raise RunError(f"{url} cannot be fetched: the server says {says}.") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        # A ValueError is an address that makes no sense, to which the server redirects.
        reason = one_line(getattr(error, "reason", None) or error) or type(error).__name__
        raise RunError(f"{url} cannot be reached: {reason}.") from error


def _receive(response: http.client.HTTPResponse, url: str) -> bytes:
    # Errors of the network and of the disk are both OSError: they are told apart by where they occur.
    try:
        return response.read(_BLOCK)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = one_line(error) or type(error).__name__
        raise RunError(f"The transfer of {url} broke off: {reason}; run the same command again to continue.") from error


def _disk_error(path: Path, error: OSError) -> RunError:
    hint = "; make room and repeat the command" if error.errno == errno.ENOSPC else ""
    return RunError(f"{path} cannot be written: {error.strerror or error}{hint}.")
