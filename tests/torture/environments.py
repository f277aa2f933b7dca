"""Places where nobody tried it: no home, no output, no locale, no docstrings, no permission."""

import ctypes
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from torture import subjects
from torture.process import SOURCE, command, interpreter

COMMANDS = (
    ("recipes",),
    ("data",),
    ("--help",),
    ("train", "synthetic", "--help"),
    ("evaluate", "run"),
    ("report", "run"),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "no home": {"environment": {"HOME": None, "XDG_CACHE_HOME": None, "STEADEQ_DATA": None}},
    "a home that is not there": {"environment": {"HOME": "/nowhere", "XDG_CACHE_HOME": None}},
    "no locale": {"environment": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}},
    "an ASCII terminal": {"environment": {"PYTHONIOENCODING": "ascii"}},
    "nothing at all": {"environment": dict.fromkeys(os.environ)},
    "no docstrings": {"flags": ("-OO",)},
    "warnings are errors": {"flags": ("-W", "error::DeprecationWarning:steadeq")},
    "a narrow terminal": {"environment": {"COLUMNS": "1", "LINES": "1"}},
    "a terminal of no width": {"environment": {"COLUMNS": "0"}},
    "a terminal of words": {"environment": {"COLUMNS": "wide", "TERM": "\x1b"}},
    "no standard output": {"closed": (1,)},
    "no standard error": {"closed": (2,)},
    "no standard streams": {"closed": (0, 1, 2)},
    "a full standard output": {"stdout": "/dev/full"},
    "data in a file": {"environment": {"STEADEQ_DATA": "/dev/null"}},
    "data nowhere": {"environment": {"STEADEQ_DATA": "\udcff\n"}},
    "few open files": {"limit": True},
}


def attempt_setting(draw: Random, folder: Path) -> None:
    """Run a command in a strange place."""
    subjects.copy_of(subjects.finished("plain"), folder)
    name = draw.choice(list(SETTINGS))
    setting, arguments = SETTINGS[name], draw.choice(COMMANDS)
    options: dict[str, Any] = {}
    closed = setting.get("closed", ())
    if closed:
        options["preexec_fn"] = _closing(closed)
    if "limit" in setting:
        options["preexec_fn"] = _limited
    handle = None
    if "stdout" in setting:
        handle = options["stdout"] = os.open(setting["stdout"], os.O_WRONLY)
    try:
        environment = {**subjects.environment(folder), **setting.get("environment", {})}
        if name == "nothing at all":
            environment = {
                **dict.fromkeys(environment),
                **setting["environment"],
                "PYTHONPATH": SOURCE,
            }
        outcome = interpreter(
            *setting.get("flags", ()), "-m", "steadeq", *arguments, folder=folder, environment=environment, **options
        )
    finally:
        if handle is not None:
            os.close(handle)
    codes = (0,) if name in ("no locale", "an ASCII terminal", "no docstrings", "a narrow terminal") else (0, 1, 2)
    if 2 in closed:
        assert outcome.code in codes, f"{name}, {arguments}: exit code {outcome.code}"
        return
    try:
        outcome.check(*codes)
    except AssertionError as error:
        raise AssertionError(f"{name}, {arguments}: {error}") from None
    assert outcome.output.strip() or outcome.code or closed or "stdout" in setting, f"{name}, {arguments}: nothing said"


def attempt_permission(draw: Random, folder: Path) -> None:
    """Take the permissions away from something in a run, and use it."""
    path = subjects.copy_of(subjects.stopped("plain"), folder)
    place = draw.choice([path, *path.rglob("*")])
    place.chmod(draw.choice((0, stat.S_IRUSR, stat.S_IWUSR, stat.S_IXUSR)))
    arguments = draw.choice(
        (("train", "--resume", "--out", "run"), ("evaluate", "run"), ("report", "run"), ("diagnose", "run"))
    )
    variables = subjects.environment(folder)
    outcome = command(*arguments, hook=(_give_up_privileges,), folder=folder, environment=variables)
    if place.exists():
        place.chmod(0o700)
    outcome.check(0, 1, 2)


def _give_up_privileges() -> None:
    """Have permissions count for root too, who otherwise may do everything: by the system call capset."""
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, nothing) == 0


def _closing(numbers: tuple[int, ...]) -> Callable[[], None]:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
