"""Hubs that lie: the client of Hugging Face writes to its cache and nowhere else, and says one sentence."""

import sys
import tempfile
from pathlib import Path
from random import Random

from torture.process import QuietHandler, call, port_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OUTSIDE = Path(tempfile.gettempdir()) / "torture-escaped"
"""A file that no answer of a Hub may make."""
NAMES = (
    *(f'"{"../" * count}escaped"' for count in range(1, 7)),
    *(f'"{OUTSIDE}"', '"a/../../b"', '".."', '"."', '""', '"\\..\\x"', 'W/"../../../../escaped"', "x" * 5000),
    *('"a"', f'"{"ab" * 32}"', '"%2e%2e%2fescaped"', "../../../../escaped", "a, b"),
)
PLACES = (
    "/hub/again/resolve/main/config.json",
    "http://[::1",
    "file:///etc/passwd",
    "//",
    "",
    "\x1b[2J",
    "http://127.0.0.1:1/",
)


class _Handler(QuietHandler):
    def do_GET(self) -> None:
        draw = Random(self.path.split("/")[2])
        headers = {"ETag": '"a"', "X-Repo-Commit": COMMIT, "Content-Length": draw.choice(("0", "5", "-1", "x"))}
        for _ in range(draw.choice((1, 1, 2))):
            headers[draw.choice(("ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Xet-Hash"))] = draw.choice(NAMES)
        status = draw.choice((200, 200, 200, 302, 307, 308, 404))
        if status in (302, 307, 308):
            headers["Location"] = draw.choice(PLACES)
        elif status == 404:
            headers["X-Error-Code"] = draw.choice(("EntryNotFound", "RepoNotFound", "Odd"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"12345")
        self.close_connection = True

    do_HEAD = do_GET


def attempt(draw: Random, folder: Path) -> None:
    """Load a model from a Hub that says anything."""
    home = folder / "a" / "b" / "home"
    home.mkdir(parents=True)
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.1:{port_of(_Handler)}",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }
    outcome = call(_load, f"hub/{draw.randrange(10**9)}", folder=folder, environment=environment)
    outcome.check(2, max_seconds=60)
    outside = [path for path in folder.rglob("*") if not path.is_relative_to(home) and path not in home.parents]
    assert not outside, f"written outside: {outside}"
    assert not OUTSIDE.exists()


def _load(name: str) -> int:
    from steadeq.models import ToyDEQ

    try:
        ToyDEQ.from_pretrained(name)
    except ValueError as error:
        print(f"steadeq: {error}", file=sys.stderr)
        return 2
    return 0
