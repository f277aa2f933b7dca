"""Servers that lie: what is fetched is what was asked for, or nothing, and a terminal is told no secrets."""

import hashlib
from pathlib import Path
from random import Random

from torture.process import QuietHandler, call, port_of, told

CONTENT = bytes(range(256)) * 400
PRECIOUS = b"years of work"
HEADERS = (
    *(("Content-Length", value) for value in ("-1", "0", "1e9", "99999999999999999999", "٣", "5, 5", "")),
    *(("Content-Range", value) for value in ("bytes 0-1/2", "bytes 9-1/0", "lies")),
    *(("Transfer-Encoding", "chunked"), ("Content-Encoding", "gzip"), ("X", "y" * 70_000), ("X\x1b[2J", "\x9b31m")),
    *(
        ("Location", value)
        for value in ("/again", "file:///etc/passwd", "//", "http://127.0.0.1:1/", "ftp://x", "\x1b[2J")
    ),
)
LINES = (
    *(b"HTTP/1.1 200 OK", b"HTTP/1.1 206 Partial", b"HTTP/1.1 416 No", b"HTTP/1.1 302 Found", b"HTTP/1.1 308 Moved"),
    *(b"HTTP/1.1 500 \x1b[2J\x1b]0;gone\x07<b>\xff", b"HTTP/1.1 404 \x9b31m", b"HTTP/1.1 999 Odd"),
    *(b"HTTP/1.1 100 Continue", b"HTTP/9.9 200 OK", b"HTTP/1.1 two OK", b"SSH-2.0-OpenSSH", b""),
)


class _Handler(QuietHandler):
    def do_GET(self) -> None:
        answer, body = _answer(Random(self.path.rpartition("/")[2]))
        self.wfile.write(answer + body)
        self.close_connection = True


def attempt(draw: Random, folder: Path) -> None:
    """Fetch a file from a server that says anything."""
    seed, target = str(draw.random()), folder / "data" / "file.bin"
    target.parent.mkdir()
    (folder / "precious").write_bytes(PRECIOUS)
    part = target.with_name("file.bin.part")
    way = draw.choice(("nothing", "nothing", "part", "link", "garbage"))
    if way == "link":
        part.symlink_to(folder / "precious")
    elif way != "nothing":
        part.write_bytes(CONTENT[:1000] if way == "part" else b"x" * 1000)
    environment = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    url = f"http://127.0.0.1:{port_of(_Handler)}/{seed}"
    outcome = call(_fetch, url, target, folder=folder, environment=environment)
    outcome.check(0, 1, 2, max_seconds=40)
    assert (folder / "precious").read_bytes() == PRECIOUS, "it wrote through a link"
    assert outcome.code != 0 or target.read_bytes() == CONTENT
    assert outcome.code == 0 or not target.exists()


def _fetch(url: str, target: Path) -> int:
    from steadeq.lab.data.download import fetch

    md5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    return told(lambda: fetch(url, target, md5=md5))


def _answer(draw: Random) -> tuple[bytes, bytes]:
    lines = [draw.choice((LINES[:2], LINES[:5], LINES)[draw.randrange(3)])]
    for _ in range(draw.choice((0, 0, 1, 3))):
        name, value = draw.choice(HEADERS)
        lines.append(f"{name}: {value}".encode())
    body = draw.choice((*[CONTENT] * 5, CONTENT[:500], b"", b"5\r\nabcde\r\nzz\r\n", draw.randbytes(5000)))
    return b"\r\n".join(lines) + draw.choice((b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"")), body
