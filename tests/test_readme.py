"""The README, typed word by word: every command works, in the order in which it stands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from steadeq.lab.cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Return the words of each command of the README, without comments, but for those that install."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in blocks if not kind for line in block.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("steadeq ")]
    assert len(found) >= 7
    return found


def shortened(words: list[str]) -> list[str]:
    """Return a command that trains for moments."""
    if words[1] == "train":
        return [*words, "--loop.num-steps", "3", "--log.spectrum-samples", "2"]
    return [*words, "--num-epochs", "1", "--num-seeds", "1"] if words[1] == "demo" else words


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A folder, and nothing of this machine but the package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEADEQ_DATA", raising=False)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path


def test_every_command_works_in_sequence(fresh):
    for words in commands():
        assert main(shortened(words)[1:]) == 0, shlex.join(words)
    assert {"prefix-sums", "prefix-sums-jr", "demo"} <= {path.name for path in (fresh / "runs").iterdir()}


@pytest.mark.slow
def test_every_command_works_in_sequence_as_it_stands(fresh):
    for words in commands():
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (shlex.join(words), done.stderr)
        assert "Traceback" not in done.stderr
    assert (fresh / "runs" / "demo" / "report.html").is_file()


def test_what_is_installed_is_there():
    (line,) = re.findall(r"^pip install '\.\[(\w+)\]'$", README, flags=re.MULTILINE)
    assert f"\n{line} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert shutil.which("make") is None or re.search(r"^demo:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_it_is_short_and_commands_it_names_exist():
    assert len(README.splitlines()) <= 135
    for name in re.findall(r"`steadeq (\w+)", README):
        assert (ROOT / "src" / "steadeq" / "lab" / "cli" / f"{name}.py").is_file(), name
