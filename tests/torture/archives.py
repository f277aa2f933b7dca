"""Archives that reach out of their folder, or swell: nothing is written outside, and nothing but plain files inside."""

import io
import os
import resource
import stat
import tarfile
import zipfile
from pathlib import Path
from random import Random

from lab.data.damages import damaged
from torture.process import call, told

LINKS = (
    *("sym", "hard", "fifo", "device", "absolute", "dots", "new dots", "few dots", "through", "backslash", "null"),
    "long",
)
MAX_BYTES = 300_000_000
"""What one file of a child may hold: a bomb that is not refused ends there."""


def attempt(draw: Random, folder: Path) -> None:
    """Unpack a hostile archive."""
    kind = draw.choice((".tar.gz", ".zip"))
    archive, target = folder / f"data{kind}", folder / "below" / "data"
    target.parent.mkdir()
    (folder / "precious").write_text("years of work")
    way = draw.choice((*LINKS, "bomb", "damaged", "damaged", "damaged", "duplicate", "lies", "good"))
    content = (_zip if kind == ".zip" else _tar)(draw, way, folder)
    archive.write_bytes(damaged(content, draw) if way == "damaged" else content)
    outcome = call(_unpack, archive, target, folder=folder, limits={resource.RLIMIT_FSIZE: MAX_BYTES})
    outcome.check(*((0,) if way == "good" else (0, 1, 2)), max_mb=500)
    assert (folder / "precious").read_text() == "years of work"
    assert not (folder / "precious").stat().st_nlink > 1
    assert {path.name for path in folder.iterdir()} == {"precious", "below", archive.name}, "written outside"
    assert outcome.code == 0 or not target.exists(), "a part of it was left behind"
    assert {path.name for path in target.parent.iterdir()} <= {"data"}, "something was left behind"
    for path in target.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), f"{path.name} is not a plain file"
        assert not mode & (stat.S_ISUID | stat.S_ISGID), f"{path.name} runs as somebody else"


def _unpack(archive: Path, target: Path) -> int:
    from steadeq.lab.data.download import unpack

    os.umask(0o022)
    return told(unpack, archive, target)


def _tar(draw: Random, way: str, folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:

        def add(name: str, content: bytes = b"data", **fields) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o6755
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(content))

        add("data/a.bin", draw.randbytes(500))
        outside = draw.choice(
            ("../../precious", "../../new", str(folder / "precious"), "../" * 30 + str(folder / "precious"))
        )
        if way == "sym":
            add("data/link", b"", type=tarfile.SYMTYPE, linkname=outside)
            add("data/link", b"gone")
        elif way == "hard":
            add("data/link", b"", type=tarfile.LNKTYPE, linkname=outside)
            add("data/link", b"gone")
        elif way == "through":
            # Names so long that a resolved path is cut off (CVE-2025-4517).
            part, where = "d" * 247, "data"
            for letter in "abcdefghijklmnop":
                add(f"{where}/{part}", b"", type=tarfile.DIRTYPE)
                add(f"{where}/{letter}", b"", type=tarfile.SYMTYPE, linkname=part)
                where = f"{where}/{part}"
            links = "data/" + "/".join("abcdefghijklmnop") + "/" + "l" * 254
            add(links, b"", type=tarfile.SYMTYPE, linkname="../" * 16)
            add("data/escape", b"", type=tarfile.SYMTYPE, linkname=f"{links}/../../precious")
            add("data/hard", b"", type=tarfile.LNKTYPE, linkname="data/escape")
            add("data/hard", b"gone")
        elif way == "fifo":
            add("data/fifo", b"", type=tarfile.FIFOTYPE)
        elif way == "device":
            add("data/zero", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5)
        elif way == "bomb":
            add("data/zeros", bytes(400_000_000))
        elif way == "lies":
            member = tarfile.TarInfo("data/lie")
            member.size = draw.choice((10**6, 10**12))
            tar.fileobj.write(member.tobuf())  # pyright: ignore
        else:
            add(_name(way, folder), b"gone")
            add("data/a.bin", b"again") if way == "duplicate" else None
    return buffer.getvalue()


def _zip(draw: Random, way: str, folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data/a.bin", draw.randbytes(500))
        member = zipfile.ZipInfo(_name(way, folder))
        if way in ("sym", "hard", "through", "fifo", "device"):
            mode = {"fifo": stat.S_IFIFO, "device": stat.S_IFCHR}.get(way, stat.S_IFLNK)
            member.external_attr = (mode | 0o777) << 16
        content = bytes(400_000_000) if way == "bomb" else b"../../precious"
        file.writestr(member, content, zipfile.ZIP_DEFLATED)
        if way == "duplicate":
            member = zipfile.ZipInfo("data/b.bin")
            member.filename = "data/a.bin"
            file.NameToInfo.pop("data/a.bin")
            file.writestr(member, b"again")
    packed = bytearray(buffer.getvalue())
    if way == "lies":
        # The size that the directory of the archive states for a member.
        place = packed.rfind(b"PK\x01\x02") + 24
        packed[place : place + 4] = draw.choice((b"\x00\x00\x00\x00", b"\xff\xff\xff\x7f"))
    return bytes(packed)


def _name(way: str, folder: Path) -> str:
    return {
        "absolute": str(folder / "precious"),
        # Once there is such a file, and once there is none yet.
        "dots": "data/../../../precious",
        "new dots": "data/../../../new",
        "few dots": "../beside",
        "backslash": "data\\..\\..\\..\\precious",
        "null": "data/a\x00b",
        "long": "data/" + "n" * 300,
    }.get(way, "data/b.bin")
