"""Children that do one thing and end: forked from a server that has imported everything, so that each costs little.

A try that hangs, crashes the interpreter or takes all memory harms nobody but its child.
"""

import contextlib
import http.server
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import steadeq

SOURCE = str(Path(steadeq.__file__).parents[1])
PRELOADED = [
    f"steadeq.lab.cli.{name}"
    for name in ("main", "train", "evaluate", "diagnose", "report", "generate", "convert", "data")
]
HEADROOM = 2 << 30
"""Bytes that a child may map beyond what it starts with, so that a try that goes wrong does not take the machine."""

PATIENCE = 300
"""Seconds after which a child counts as hung: so many that no slow or busy machine looks like one. What a child may
take is told by the time of the processor, which depends on nobody else."""

_starting = threading.Lock()
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "PIL.Image", *PRELOADED])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a child ended."""

    code: int | None
    """Exit code, negative for a signal; None if it had to be ended."""
    output: str
    errors: str
    seconds: float = 0.0
    """Processor time that it took, which depends on nobody else; 0 if it is not known."""
    extra_mb: float = 0.0
    """The most memory that it took beyond what it started with; 0 if it is not known."""

    def check(self, *codes: int, max_seconds: float = 60, max_mb: float = 1000) -> None:
        """Check that it ended in time with one of some exit codes, and with one sentence if it failed."""
        assert self.code is not None, f"it hung: {self.tail}"
        assert "Traceback (most recent call last)" not in self.errors, self.tail
        assert self.code in codes, f"exit code {self.code}: {self.tail}"
        if self.code in (1, 2):
            said = [line for line in self.errors.splitlines() if line.startswith("steadeq: ")]
            assert len(said) == 1, f"no single sentence: {self.tail}"
            assert self.errors.splitlines()[-1] == said[0], f"more than a sentence: {self.tail}"
        strange = re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", self.errors)
        assert strange is None, f"control characters: {self.tail}"
        assert self.seconds < max_seconds, f"it took {self.seconds:.0f} seconds"
        assert self.extra_mb < max_mb, f"it took {self.extra_mb:.0f} MB: {self.tail}"

    @property
    def tail(self) -> str:
        """What it said last, in one line."""
        return repr(self.errors[-600:])


def call(
    function: Callable[..., Any],
    *arguments: Any,
    folder: Path,
    environment: Mapping[str, str | None] | None = None,
    limits: Mapping[int, int] | None = None,
    timeout: float = PATIENCE,
    meanwhile: Callable[[int], None] | None = None,
) -> Outcome:
    """Call a function of a module in a child.

    Args:
        function: What to call; its result is the exit code.
        arguments: What to call it with.
        folder: Where the child works.
        environment: Variables to change; None removes one.
        limits: Limits of the `resource` module to set.
        timeout: Seconds after which the child and its children are ended.
        meanwhile: Takes the id of the child while it works.
    """
    with tempfile.TemporaryDirectory() as log:
        paths = [f"{log}/{name}" for name in ("output", "errors", "usage")]
        settings = (str(folder), dict(environment or {}), dict(limits or {}), *paths)
        process = _context.Process(target=_work, args=(settings, function, arguments))
        with _starting:
            process.start()
            # Who starts the next one would ask how this one ended, and the answer can be had only once.
            multiprocessing.process._children.discard(process)
        try:
            if meanwhile is not None:
                meanwhile(process.pid)
            process.join(timeout)
            code = process.exitcode
        finally:
            kill_group(process.pid)
            process.join()
        output, errors, usage = (_read(path) for path in paths)
        seconds, extra_mb = json.loads(usage or "[0, 0]")
        return Outcome(code=code, output=output, errors=errors, seconds=seconds, extra_mb=extra_mb)


def command(*arguments: str, hook: tuple[Any, ...] = (), **options: Any) -> Outcome:
    """Run `steadeq` in a child; a hook is a function and its arguments, called before."""
    return call(_main, list(arguments), hook, **options)


def interpreter(
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str | None] | None = None,
    timeout: float = PATIENCE,
    meanwhile: Callable[[int], None] | None = None,
    **options: Any,
) -> Outcome:
    """Run a Python of its own, for what depends on how it starts; see `call`."""
    variables = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **(environment or {})}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={name: value for name, value in variables.items() if value is not None},
            start_new_session=True,
            **{"stdout": output, "stderr": errors, "preexec_fn": heed_signals, **options},
        )
        try:
            if meanwhile is not None:
                meanwhile(process.pid)
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_group(process.pid)
            process.wait()
        texts = [(file.seek(0), file.read().decode(errors="replace"))[1] for file in (output, errors)]
    return Outcome(code=code, output=texts[0], errors=texts[1])


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Answers without a word about it."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@cache
def port_of(handler: type[QuietHandler]) -> int:
    """Return the port of a server that answers like this for as long as this process lives."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def heed_signals() -> None:
    """Have signals mean what they mean by default: in the background, some of them are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def kill_group(pid: int) -> None:
    """End a child and all of its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def told(function: Callable[..., Any], *arguments: Any) -> int:
    """Call a function of the lab in a child, with its errors told as the command tells them."""
    from steadeq.lab.errors import InputError, RunError

    try:
        function(*arguments)
    except (InputError, RunError) as error:
        print(f"steadeq: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


def _work(settings: Sequence[Any], function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    folder, environment, limits, output, errors, usage = settings
    os.setsid()
    heed_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    log = os.open(usage, os.O_WRONLY | os.O_CREAT)
    os.chdir(folder)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    import torch

    torch.set_num_threads(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrusage(resource.RUSAGE_SELF)
    for limit, value in {resource.RLIMIT_AS: pages * resource.getpagesize() + HEADROOM, **limits}.items():
        resource.setrlimit(limit, (value, value))
    try:
        sys.exit(function(*arguments))
    finally:
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        os.write(log, json.dumps([seconds, (after.ru_maxrss - before.ru_maxrss) / 1024]).encode())


def _main(arguments: Sequence[str], hook: Sequence[Any]) -> int:
    from steadeq.lab.cli.main import main

    if hook:
        hook[0](*hook[1:])
    return main(arguments)


def _read(path: str) -> str:
    return Path(path).read_text(errors="replace") if os.path.exists(path) else ""
