"""Archives of others: plain files come out of them, or nothing does."""

import gzip
import io
import random
import stat
import struct
import tarfile
import tracemalloc
import zipfile

import pytest
from lab.data.damages import damaged

from steadeq.lab.data import archives
from steadeq.lab.data.archives import extract
from steadeq.lab.errors import RunError

GOOD = {"set/": b"", "set/a": b"1" * 1000, "set/b/c": b"2" * 512, "set/d": b""}


def tar_of(*members, compress=True) -> bytes:
    """Return an archive of pairs of a name, or a TarInfo, and a content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = info.size or len(content)
            if info.name.endswith("/"):
                info.type = tarfile.DIRTYPE
            tar.addfile(info, io.BytesIO(content.ljust(info.size)) if content else None)
    return gzip.compress(file.getvalue(), mtime=0) if compress else file.getvalue()


def special(kind: bytes, name: str = "set/special", *, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def zip_of(*members, method: int = zipfile.ZIP_DEFLATED, mode: int = stat.S_IFREG | 0o644) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        for name, content in members:
            info = zipfile.ZipInfo("placeholder")
            # Its constructor mends names.
            info.filename, info.compress_type, info.external_attr = name, method, mode << 16
            target.writestr(info, content)
    return file.getvalue()


def unpack(content: bytes, folder, suffix: str = ".tar.gz"):
    """Unpack into folder/out and return what is there."""
    (folder / f"set{suffix}").write_bytes(content)
    (folder / "out").mkdir(exist_ok=True)
    extract(folder / f"set{suffix}", folder / "out")
    return {
        path.relative_to(folder / "out").as_posix(): path.read_bytes()
        for path in (folder / "out").rglob("*")
        if not path.is_dir()
    }


@pytest.mark.parametrize(("suffix", "make"), [(".tar.gz", tar_of), (".zip", zip_of)])
def test_plain_files_come_out_as_they_went_in(suffix, make, tmp_path):
    files = {name: content for name, content in GOOD.items() if not name.endswith("/")}
    assert unpack(make(*GOOD.items()), tmp_path, suffix) == files
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"set"}


def test_files_have_no_more_rights_than_new_files_have(tmp_path):
    info = tarfile.TarInfo("set/a")
    info.mode = 0o7777
    unpack(tar_of((info, b"1")), tmp_path)
    assert not (tmp_path / "out/set/a").stat().st_mode & 0o7111


NAMES = ["../evil", "set/../../evil", "/evil", "set\\..\\..\\evil", "C:/evil", "set/\x1b[2J", "set/new\nline", "."]
KINDS = {
    "link": special(tarfile.SYMTYPE, to="a"),
    "link to the outside": special(tarfile.SYMTYPE, to="../../evil"),
    "absolute link": special(tarfile.SYMTYPE, to="/etc/passwd"),
    "hard link": special(tarfile.LNKTYPE, to="set/a"),
    "hard link to the outside": special(tarfile.LNKTYPE, to="../evil"),
    "character device": special(tarfile.CHRTYPE),
    "block device": special(tarfile.BLKTYPE),
    "pipe": special(tarfile.FIFOTYPE),
    "unknown": special(b"Z"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("suffix", "make"), [(".tar.gz", tar_of), (".zip", zip_of)])
def test_names_that_lead_elsewhere_are_refused(suffix, make, name, tmp_path):
    with pytest.raises(
        RunError, match=rf"set{suffix} cannot be unpacked: '[ -~]*' is not the name of a file .*[^.]\.$"
    ):
        unpack(make(("set/a", b"1"), (name, b"2")), tmp_path, suffix)
    assert {path.name for path in tmp_path.iterdir()} == {f"set{suffix}", "out"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_refused(kind, tmp_path):
    with pytest.raises(RunError, match=r"set\.tar\.gz cannot be unpacked: 'set/special' is not a plain file"):
        unpack(tar_of(("set/a", b"1"), (KINDS[kind], b"")), tmp_path)
    assert not (tmp_path / "out/set/special").is_symlink()


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_what_is_no_plain_file_is_refused_in_a_zip_archive_too(mode, tmp_path):
    with pytest.raises(RunError, match=r"'set/a' is not a plain file"):
        unpack(zip_of(("set/a", b"../../evil"), mode=mode | 0o777), tmp_path, ".zip")


def test_a_link_that_becomes_the_folder_of_a_file_is_refused(tmp_path):
    # CVE-2025-4517 and its relatives need a link that was made before.
    first = special(tarfile.SYMTYPE, "set", to="../..")
    with pytest.raises(RunError, match="'set' is not a plain file"):
        unpack(tar_of((first, b""), ("set/evil", b"1")), tmp_path)
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize(
    "members",
    [("set/a", "set/a"), ("set/a", "set/./a"), ("set/a", "set/a/b"), ("set/a/b", "set/a"), ("set/a", "set/a/")],
)
@pytest.mark.parametrize(("suffix", "make"), [(".tar.gz", tar_of), (".zip", zip_of)])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(suffix, make, members, tmp_path):
    with pytest.raises(RunError, match=r"cannot be unpacked: it has 'set/.*' twice\.$"):
        unpack(make(*((name, b"" if name.endswith("/") else b"1") for name in members)), tmp_path, suffix)


# Bombs


@pytest.mark.parametrize(("suffix", "make"), [(".tar.gz", tar_of), (".zip", zip_of)])
def test_what_is_too_much_is_refused_before_it_is_written(suffix, make, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_UNPACKED", 1 << 20)
    content = make(("set/a", bytes(700_000)), ("set/b", bytes(700_000)))
    assert len(content) < 10_000
    with pytest.raises(RunError, match=r"it holds more than 1,048,576 bytes|not one after another"):
        unpack(content, tmp_path, suffix)
    assert not (tmp_path / "out/set/b").exists()
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(RunError, match="it holds more than 3 files"):
        unpack(make(*((f"set/{i}", b"") for i in range(5))), tmp_path / "out", suffix)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_headers_of_gigabytes_are_not_held_in_memory(kind, tmp_path):
    header = special(kind)
    header.size = 1 << 24
    content = gzip.compress(header.tobuf() + bytes(1 << 24), compresslevel=1)
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match="it has headers that are too large"):
            unpack(content, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [-512, -1024, -(1 << 40), 1 << 40, 1 << 62])
def test_sizes_that_lead_in_a_circle_or_nowhere_are_refused(size, tmp_path):
    # CVE-2025-8194: a size below zero made the module read the same header for ever.
    header = tarfile.TarInfo("set/a")
    header.size = 512
    block = bytearray(header.tobuf())
    block[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % (1 << 88)).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(RunError, match=r"set\.tar\.gz cannot be unpacked: .*[^.]\.$"):
        unpack(gzip.compress(bytes(block) + bytes(4096)), tmp_path)


def test_a_thousand_headers_of_one_file_are_refused(tmp_path):
    header = special(tarfile.GNUTYPE_LONGNAME)
    header.size = 4
    with pytest.raises(RunError, match=r"cannot be unpacked: .*[^.]\.$"):
        unpack(gzip.compress((header.tobuf() + b"abc\0".ljust(512, b"\0")) * 2000), tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_to_compress_are_refused(method, tmp_path):
    with pytest.raises(RunError, match=r"'set/a' uses an unsupported compression"):
        unpack(zip_of(("set/a", b"1" * 100), method=method), tmp_path, ".zip")


def test_a_member_that_is_longer_than_it_says_is_refused(tmp_path):
    content = bytearray(zip_of(("set/a", b"1" * 100_000)))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = content.index(signature) + offset
        content[place : place + 4] = struct.pack("<I", 50)
    with pytest.raises(RunError, match=r"set\.zip cannot be unpacked: .*[^.]\.$"):
        unpack(bytes(content), tmp_path, ".zip")


def test_a_name_with_a_zero_byte_is_refused(tmp_path):
    content = zip_of(("set/a_evil", b"1")).replace(b"set/a_evil", b"set/a\0evil")
    with pytest.raises(RunError, match=r"cannot be unpacked: '[ -~]*' is not the name of a file"):
        unpack(content, tmp_path, ".zip")


# Damage


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path):
    content = bytearray(tar_of(*GOOD.items(), compress=False))
    place = content.index(b"set/b/c")
    content[place + 148] ^= 1
    with pytest.raises(RunError, match=r"cannot be unpacked: it goes on after its end\.$"):
        unpack(gzip.compress(bytes(content)), tmp_path)


def test_a_wrong_checksum_at_the_very_end_is_noticed(tmp_path):
    content = bytearray(tar_of(*GOOD.items()))
    content[-8] ^= 1
    with pytest.raises(RunError, match=r"cannot be unpacked: CRC check failed"):
        unpack(bytes(content), tmp_path)


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize(("suffix", "make"), [(".tar.gz", tar_of), (".zip", zip_of)])
def test_whatever_the_damage_an_archive_is_unpacked_or_refused(suffix, make, is_inside, tmp_path):
    if suffix == ".zip" and is_inside:
        make = lambda *members: zip_of(*members, method=zipfile.ZIP_STORED)  # noqa: E731
    whole = gzip.decompress(make(*GOOD.items())) if suffix == ".tar.gz" and is_inside else make(*GOOD.items())
    rng = random.Random(0)
    num_refused = 0
    for number in range(150):
        content = damaged(whole, rng)
        if suffix == ".tar.gz" and is_inside:
            content = gzip.compress(content, mtime=0, compresslevel=1)
        folder = tmp_path / f"{number:03d}"
        folder.mkdir()
        try:
            files = unpack(content, folder, suffix)
        except RunError:
            num_refused += 1
        except OSError as error:
            # A flipped bit can make a name too long for the disk.
            assert error.errno is not None  # noqa: PT017
            num_refused += 1
        else:
            assert sum(map(len, files.values())) < 10_000
        assert {path.name for path in folder.iterdir()} == {f"set{suffix}", "out"}
        assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert {path.name for path in tmp_path.iterdir()} == {f"{number:03d}" for number in range(150)}
    assert num_refused > 30
