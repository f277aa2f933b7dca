"""Downloads, from a server of this machine: whole, resumed, wrong, or refused."""

import errno
import gzip
import hashlib
import http.server
import os
import stat
import threading
from dataclasses import replace

import pytest
from lab.data.packed import PACKERS, tar_of, zip_of

from steadeq.lab.cli.main import main
from steadeq.lab.data import WikiText2, WikiText103, download
from steadeq.lab.data.catalog import CATALOG
from steadeq.lab.data.download import Download, fetch
from steadeq.lab.data.locations import verify
from steadeq.lab.errors import InputError, RunError

CONTENT = bytes(range(256)) * 2000


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves what is in `files`; ends transfers after `limit` bytes; ignores ranges unless `has_ranges`.

    What is in `raw` is the whole of an answer, headers and all.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.raw: dict[str, bytes] = {}
        self.limit: int | None = None
        self.has_ranges = True
        self.has_length = True
        self.requests: list[tuple[str, str | None]] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.server.requests.append((name, wanted))
        if name in self.server.raw:
            self.wfile.write(self.server.raw[name])
            return
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.has_ranges else 0
        if begin >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if self.server.has_length:
            self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        end = len(content) if self.server.limit is None else begin + self.server.limit
        self.wfile.write(content[begin:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.files["data.bin"] = CONTENT
        yield server
        server.shutdown()
        thread.join()


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Files


@pytest.mark.parametrize("has_length", [True, False])
def test_a_file_arrives_whole_and_shows_its_progress(has_length, server, tmp_path):
    server.has_length = has_length
    seen = []
    fetch(server.url("data.bin"), tmp_path / "new" / "data.bin", md5=md5(CONTENT), progress=lambda *a: seen.append(a))
    assert (tmp_path / "new" / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["data.bin"]
    total = len(CONTENT) if has_length else None
    assert seen[0] == ("data.bin", 0, total)
    assert seen[-1] == ("data.bin", len(CONTENT), total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_file_that_is_there_is_kept_and_not_fetched_again(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(CONTENT)
    fetch(server.url("data.bin"), tmp_path / "data.bin", md5=md5(CONTENT))
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"data\.bin exists and differs from the file at"):
        fetch(server.url("data.bin"), tmp_path / "data.bin", md5=md5(CONTENT))
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    assert server.requests == []


def test_a_transfer_that_was_cut_off_is_resumed(server, tmp_path):
    server.limit = 200_000
    path = tmp_path / "data.bin"
    for done in (200_000, 400_000):
        with pytest.raises(RunError, match=f"ended after {done} of {len(CONTENT)} bytes"):
            fetch(server.url("data.bin"), path, md5=md5(CONTENT))
        assert names(tmp_path) == ["data.bin.part"]
        assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:done]
    seen = []
    fetch(server.url("data.bin"), path, md5=md5(CONTENT), progress=lambda *a: seen.append(a))
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]
    assert [wanted for _, wanted in server.requests] == [None, "bytes=200000-", "bytes=400000-"]
    assert seen[0] == ("data.bin", 400_000, len(CONTENT))


@pytest.mark.parametrize(("part", "has_ranges"), [(b"x" * 1000, False), (CONTENT, True)])
def test_what_cannot_be_resumed_is_sent_again_and_what_is_whole_needs_only_its_checksum(
    part, has_ranges, server, tmp_path
):
    server.has_ranges = has_ranges
    (tmp_path / "data.bin.part").write_bytes(part)
    fetch(server.url("data.bin"), tmp_path / "data.bin", md5=md5(CONTENT))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("part", [b"", b"x" * 1000, b"x" * 2 * len(CONTENT)])
def test_a_wrong_checksum_leaves_nothing_behind(part, server, tmp_path):
    if part:
        (tmp_path / "data.bin.part").write_bytes(part)
    expected = md5(CONTENT) if part else md5(b"something else")
    with pytest.raises(RunError, match=rf"data\.bin has the MD5 checksum \w+ instead of {expected}"):
        fetch(server.url("data.bin"), tmp_path / "data.bin", md5=expected)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.0 404 Not Found\r\n\r\n", r"odd cannot be fetched: the server says 404 Not Found\.$"),
        (b"HTTP/1.0 404 \x1b[2JGone\x07 for good\r\n\r\n\x1b[31mbody", r"the server says 404 \[2JGone for good"),
        (b"HTTP/1.0 503 " + b"x" * 5000 + b"\r\n\r\n", "the server says 503 x{190,196}"),
        (b"HTTP/1.0 302 Found\r\nLocation: /odd\r\n\r\n", "the server says 302 .*infinite loop.* Found"),
        (b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "the server says 302 .*not allowed"),
        (b"\x1b[2J\x00\x07 hello\r\n\r\n", r"cannot be reached: \[2J hello"),
        (b"HTTP/1.0 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "cannot be reached: got more than 100 headers"),
        (b"", "cannot be reached: Remote end closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "broke off: IncompleteRead"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9999999999\r\n\r\nabc", "sends more than 1,073,741,824 bytes"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nabc", "ended after 3 of 10 bytes"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: \xb2\r\n\r\nabc", "has the MD5 checksum"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: -5\r\n\r\nabc", "has the MD5 checksum"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nabc", "has the MD5 checksum"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_whatever_a_server_says_is_one_sentence(answer, problem, server, tmp_path):
    server.raw["odd"] = answer
    with pytest.raises(RunError, match=problem) as refusal:
        fetch(server.url("odd"), tmp_path / "data.bin", md5=md5(CONTENT))
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 350


def test_no_network_or_no_address_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as unused:
        port = unused.server_port
    with pytest.raises(RunError, match=r"cannot be reached: .*Connection refused\.$"):
        fetch(f"http://127.0.0.1:{port}/data.bin", tmp_path / "data.bin", md5=md5(CONTENT))

    def redirect(*_, **__):
        # What parsing http://[::1/ raises.
        raise ValueError("Invalid IPv6 URL")

    monkeypatch.setattr(download.urllib.request, "urlopen", redirect)
    with pytest.raises(RunError, match=r"^http://a/b cannot be reached: Invalid IPv6 URL\.$"):
        fetch("http://a/b", tmp_path / "data.bin", md5=md5(CONTENT))


def test_a_transfer_without_end_is_ended(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_BYTES", 100_000)
    server.has_length = False
    with pytest.raises(RunError, match=r"data\.bin sends more than 100,000 bytes"):
        fetch(server.url("data.bin"), tmp_path / "data.bin", md5=md5(CONTENT))
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_what_arrives_goes_through_no_link(kind, server, tmp_path):
    part, precious = tmp_path / "data.bin.part", tmp_path / "precious"
    precious.write_text("mine")
    {
        "link": lambda: part.symlink_to(precious),
        "link to nothing": lambda: part.symlink_to(tmp_path / "new"),
        "pipe": lambda: os.mkfifo(part),
        "folder": part.mkdir,
    }[kind]()
    with pytest.raises(InputError, match=r"data\.bin\.part is a link or not a file, .*: move it away first\.$"):
        fetch(server.url("data.bin"), tmp_path / "data.bin", md5=md5(CONTENT))
    assert precious.read_text() == "mine"
    assert names(tmp_path) == ["data.bin.part", "precious"]
    if kind in ("pipe", "folder"):
        part.rename(tmp_path / "data.bin")
        with pytest.raises(InputError, match=rf"data\.bin cannot be read: it is a {kind}"):
            fetch(server.url("data.bin"), tmp_path / "data.bin", md5=md5(CONTENT))


def test_a_disk_that_cannot_be_written_is_one_sentence_and_keeps_what_arrived(server, tmp_path, monkeypatch):
    def is_full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(download.os, "fsync", is_full)
        with pytest.raises(RunError, match=r"data\.bin\.part cannot be written: No space left on device; make room"):
            fetch(server.url("data.bin"), tmp_path / "data.bin", md5=md5(CONTENT))
    assert names(tmp_path) == ["data.bin.part"]
    with pytest.raises(RunError, match=r"cannot be written: (Not a directory|File exists)"):
        fetch(server.url("data.bin"), tmp_path / "data.bin.part" / "data.bin", md5=md5(CONTENT))


# Archives


def packed(server, content: bytes, suffix: str) -> Download:
    server.files[f"set{suffix}"] = content
    return Download(url=server.url(f"set{suffix}"), md5=md5(content), target="set", is_archive=True)


@pytest.mark.parametrize("suffix", PACKERS)
def test_an_archive_becomes_its_folder(suffix, server, tmp_path):
    members = (("set/", b""), ("set/a", b"1"), ("set/b/c", b"2"), ("other", b"3"))
    wanted = packed(server, PACKERS[suffix](*members), suffix)
    server.limit = 50
    with pytest.raises(RunError, match="run the same command again to continue"):
        wanted.obtain(tmp_path)
    server.limit = None
    for _ in range(2):
        assert wanted.obtain(tmp_path) == tmp_path / "set"
    assert [requested for _, requested in server.requests] == [None, "bytes=50-"]
    assert (tmp_path / "set/b/c").read_bytes() == b"2"
    assert names(tmp_path) == ["set"]


def encrypted(content: bytes) -> bytes:
    """Return an archive whose members claim to be encrypted, by a bit in both of their headers."""
    changed = bytearray(content)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        changed[content.index(signature) + offset] |= 1
    return bytes(changed)


def spoiled(content: bytes) -> bytes:
    """Return an archive whose first member has other bytes than its checksum says."""
    changed = bytearray(content)
    changed[content.index(b"set/a") + 5] ^= 0xFF
    return bytes(changed)


# What test_archives.py tries and more, in one example of each.
LARGE = ("set/a", b"1" * 100)
UNUSABLE = {
    "parent.tar.gz": tar_of(LARGE, ("../evil", b"2")),
    "another-folder.tar.gz": tar_of(("another/a", b"1")),
    "cut-short.tar.gz": tar_of(LARGE)[:-20],
    "link.zip": zip_of(("set/a", b"../../evil"), mode=stat.S_IFLNK | 0o777),
    "encrypted.zip": encrypted(zip_of(LARGE)),
    "spoiled.zip": spoiled(zip_of(LARGE)),
    "no-archive.zip": b"no archive",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unsafe_or_damaged_archive_leaves_no_folder(name, server, tmp_path):
    suffix = name[name.index(".") :]
    (tmp_path / "data").mkdir()
    with pytest.raises(RunError, match=rf"set\{suffix} (cannot be unpacked: .*|does not hold a folder set)\.$"):
        packed(server, UNUSABLE[name], suffix).obtain(tmp_path / "data")
    assert names(tmp_path) == ["data"]
    assert names(tmp_path / "data") == [f"set{suffix}"]


# Checksums


def test_files_that_are_missing_or_differ_are_all_named(tmp_path):
    for name in ("good", "bad", "worse"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "spoiled.gz").write_bytes(gzip.compress(b"other"))
    expected = {name: md5(name.encode()) for name in ("good", "packed")}
    verify(tmp_path, expected)
    expected |= dict.fromkeys(("bad", "worse", "absent", "spoiled"), md5(b"spoiled"))
    with pytest.raises(InputError, match=r"absent is missing, and bad, worse, spoiled\.gz are not the published"):
        verify(tmp_path, expected)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"packed")[:-9])
    with pytest.raises(InputError, match=r"packed\.gz cannot be read: "):
        verify(tmp_path, {"packed": md5(b"packed")})


# The command


@pytest.fixture(autouse=True)
def _no_place_of_data(home, monkeypatch):
    monkeypatch.delenv("STEADEQ_DATA")


@pytest.fixture
def small(server, monkeypatch):
    """The server has a CIFAR-10, a Fashion-MNIST and two texts of a few bytes, with their checksums."""

    def offer(name, contents, checksums):
        downloads = []
        for item, content in zip(CATALOG[name].downloads, contents, strict=True):
            file = item.url.rpartition("/")[2]
            server.files[file] = content
            downloads.append(replace(item, url=server.url(file), md5=md5(content)))
        entry = replace(CATALOG[name], downloads=tuple(downloads), checksums=checksums, elsewhere=())
        monkeypatch.setitem(CATALOG, name, entry)

    def sums(files):
        return {file: md5(content) for file, content in files.items()}

    folder = "cifar-10-batches-bin"
    files = {file: file.encode() for file in CATALOG["cifar10"].checksums[folder]}
    offer(
        "cifar10", [tar_of(*((f"{folder}/{file}", content) for file, content in files.items()))], {folder: sums(files)}
    )
    items = [item.target.rpartition("/")[2] for item in CATALOG["fashion-mnist"].downloads]
    files = {file.removesuffix(".gz"): file.encode() for file in items}
    offer("fashion-mnist", [gzip.compress(content) for content in files.values()], {"fashion-mnist": sums(files)})
    for name in ("wikitext-2", "wikitext-103"):
        files = {f"wiki.{split}.tokens": split.encode() for split in ("train", "valid", "test")}
        content = zip_of(*((f"{name}/{file}", content) for file, content in files.items()))
        offer(name, [content], {name: sums(files)} if CATALOG[name].checksums else {})
    return server


def test_cifar_is_downloaded_where_it_will_be_found_and_verified(small, home, capfd):
    # A command that was cut off goes on when it is repeated.
    small.limit = 30
    for _ in range(2):
        assert main(["data", "cifar10", "--download"]) == 1
        note, problem = capfd.readouterr().err.splitlines()
        assert note.startswith("Fetching cifar-10-binary.tar.gz (")
        assert "run the same command again to continue" in problem
    small.limit = None
    assert main(["data", "cifar10", "--download"]) == 0
    out = capfd.readouterr().out
    place = home / "cache" / "steadeq" / "cifar-10-batches-bin"
    assert f"cifar10 is in {place}" in out
    assert "STEADEQ_DATA" not in out
    assert main(["data", "cifar10", "--verify"]) == 0
    assert f"All files in {place}" in capfd.readouterr().out
    assert main(["data", "cifar10", "--download"]) == 0
    assert [wanted for _, wanted in small.requests] == [None, "bytes=30-", "bytes=60-"]
    (place / "data_batch_2.bin").write_bytes(b"spoiled")
    for option in ("--verify", "--download"):
        capfd.readouterr()
        assert main(["data", "cifar10", option]) == 2
        assert "data_batch_2.bin is not the published content" in capfd.readouterr().err


def test_downloads_go_where_they_are_told_to(small, home, monkeypatch, capfd):
    assert main(["data", "fashion-mnist", "--download", "--to", "elsewhere"]) == 0
    assert f"Set STEADEQ_DATA to {home / 'elsewhere'} to use it." in capfd.readouterr().out
    assert len(names(home / "elsewhere" / "fashion-mnist")) == 4
    monkeypatch.setenv("STEADEQ_DATA", str(home / "mine"))
    assert main(["data", "fashion-mnist", "--download"]) == 0
    assert len(names(home / "mine" / "fashion-mnist")) == 4
    assert "Set STEADEQ_DATA" not in capfd.readouterr().out


@pytest.mark.parametrize("name", ["wikitext-2", "wikitext-103"])
def test_texts_are_downloaded_where_they_will_be_found(name, small, home, capfd):
    assert main(["data", name, "--download"]) == 0
    out = capfd.readouterr().out
    assert f"{name} is in {home / 'cache' / 'steadeq' / name}" in out
    # Nobody has published checksums of the files of the larger one; that of the archive was compared all the same.
    assert ("all files have their published checksums" in out) == (name == "wikitext-2")
    config = {"wikitext-2": WikiText2, "wikitext-103": WikiText103}[name]()
    assert config.vocabulary().tokens == ("<eos>", "train", "<unk>")
    assert main(["data", name, "--verify"]) == (0 if name == "wikitext-2" else 2)
    assert main(["data", name, "--download"]) == 0
    assert len(small.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--download", "--download needs the name"),
        ("--verify", "--verify needs the name"),
        ("cifar10 --to here", "--to needs --download"),
        ("cifar10 --verify", "cifar-10-batches-bin or cifar-10-batches-py"),
        ("imagenet --download", "image-net.org"),
        ("cityscapes --download", "cityscapes-dataset.com"),
        ("wikitext-103 --verify", "no published checksums of wikitext-103"),
        ("digits --download", "digits cannot be downloaded"),
        ("fashion_mnist", "'fashion-mnist'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, problem, home, capfd):
    assert main(["data", *arguments.split()]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert problem in line


@pytest.mark.parametrize("name", CATALOG)
def test_every_dataset_is_described(name, home, capfd):
    assert main(["data", name]) == 0
    out = capfd.readouterr().out
    assert "terms: " in out
    entry = CATALOG[name]
    assert all(layout in out for layout in entry.layouts)
    assert ("https://" in out) == bool(entry.layouts)
    assert all(download.url.startswith("https://") for download in entry.downloads)
