"""Commands that do what they are told, and commands that refuse; shared by these tests."""

import re
from pathlib import Path

from lab.train.runs import snapshot

from steadeq.lab.cli.main import main


def succeed(capfd, *arguments: object) -> str:
    """Return what a command prints, which must not complain."""
    capfd.readouterr()
    assert main(list(map(str, arguments))) == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    return output


def refuse(capfd, *arguments: object, code: int = 2) -> str:
    """Check that a command is refused with one sentence, that nothing is written, and return the sentence.

    Where a run is damaged (code 1), warnings may come before it.
    """
    before = snapshot(Path.cwd())
    capfd.readouterr()
    assert main(list(map(str, arguments))) == code
    output, errors = capfd.readouterr()
    assert output == ""
    *warnings, line = errors.splitlines()
    assert not warnings or code == 1
    assert line.startswith("steadeq: ")
    assert "Traceback" not in errors
    assert not re.search(r"-{4,}|─{2,}|[│╭╮╰╯]", line), "a box is not a sentence"
    assert snapshot(Path.cwd()) == before
    return line
