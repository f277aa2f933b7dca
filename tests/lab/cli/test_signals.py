"""A process of its own: signals of terminals, interpreters without docstrings, users without a home."""

import os
import signal
import subprocess
import sys

import pytest
from lab.train.runs import environment

from steadeq.lab.cli.leaving import ExitOnInterrupt
from steadeq.lab.cli.main import main
from steadeq.lab.run.record import RunRecord

SHORT = ("--loop.num-steps", "4", "--log.spectrum-samples", "0", "--log.eval-batch-size", "600")


def run_python(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], **{"env": environment(), "capture_output": True, "text": True, **options}
    )


def assert_stopped_before_anything(code: str, *arguments: str) -> None:
    result = run_python("-c", code, *arguments)
    assert result.returncode == 130
    assert (result.stdout, result.stderr) == ("", "steadeq: Stopped before anything was done.\n")


@pytest.mark.parametrize("name", ["typing", "steadeq.lab.cli.main", "steadeq.lab.cli.recipes"])
def test_ctrl_c_while_the_command_is_imported_is_never_swallowed(name):
    # As the collection of garbage and callbacks of the import system swallow it.
    code = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {name!r}:\n"
        "            try:\n"
        "                signal.raise_signal(signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        "                pass\n"
        "sys.meta_path.insert(0, Finder())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "for name in [name for name in sys.modules if name.partition('.')[0] in ('typing', 'logging')]:\n"
        "    del sys.modules[name]\n"
        "from steadeq.__main__ import run\n"
        "sys.exit(run())\n"
    )
    assert_stopped_before_anything(code, "recipes")


def test_ctrl_c_before_the_command_has_set_up_its_streams_is_no_traceback():
    code = (
        "import logging, runpy, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "logging.basicConfig = lambda **_: signal.raise_signal(signal.SIGINT)\n"
        "runpy.run_module('steadeq', run_name='__main__')\n"
    )
    assert_stopped_before_anything(code)


def test_the_package_imports_nothing_before_the_command_can_be_interrupted():
    # Ctrl-C in an import of the package itself would be a traceback.
    code = "import sys; before = set(sys.modules); import steadeq.__main__\nprint(sorted(set(sys.modules) - before))"
    assert run_python("-S", "-c", code).stdout == "['steadeq', 'steadeq.__main__']\n"


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_imports_leave_ctrl_c_as_it_was(handler, monkeypatch):
    previous = signal.signal(signal.SIGINT, getattr(signal, handler))
    try:
        with ExitOnInterrupt():
            pass
        assert signal.getsignal(signal.SIGINT) is getattr(signal, handler)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_ctrl_c_that_is_ignored_stays_ignored():
    code = (
        "import signal\nfrom steadeq.__main__ import run\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "assert run() == 0\nassert signal.getsignal(signal.SIGINT) is signal.SIG_IGN\n"
    )
    assert run_python("-c", code, "--version").returncode == 0


@pytest.mark.parametrize("has_been_stopped", [True, False])
def test_ctrl_c_while_the_interpreter_ends_is_no_traceback(has_been_stopped):
    stop = "signal.raise_signal(signal.SIGINT)" if has_been_stopped else "pass"
    code = (
        "import atexit, runpy, signal, sys, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import steadeq.lab.cli.main as command\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "threading._register_atexit(signal.raise_signal, signal.SIGINT)\n"
        "plain = command._drop_lost_output\n"
        "command._drop_lost_output = lambda: [plain(), signal.raise_signal(signal.SIGINT)] if stopped else plain()\n"
        f"stopped = {has_been_stopped}\n"
        "def dispatch(arguments):\n"
        f"    {stop}\n"
        "    return 0\n"
        "command._dispatch = dispatch\n"
        "runpy.run_module('steadeq', run_name='__main__')\n"
    )
    result = run_python("-c", code)
    said = "steadeq: Stopped at once; earlier checkpoints are intact.\n"
    assert (result.returncode, result.stderr) == ((130, said) if has_been_stopped else (0, ""))


def test_an_interpreter_without_docstrings_helps():
    result = run_python("-OO", "-m", "steadeq", "--help")
    assert result.returncode == 0
    assert "--help` lists the options of a command" in result.stdout


@pytest.mark.slow
def test_an_interpreter_without_docstrings_will_do(tmp_path):
    # One process for all, as it takes seconds to import everything.
    arguments = ["train", "synthetic", "--out", str(tmp_path / "run"), *SHORT]
    code = (
        "from steadeq.lab.cli.main import main\n"
        "assert main.__doc__ is None\n"
        "codes = [main(words) for words in (['--help'], ['recipes'], ['train', 'synthetic', '--help'], "
        f"{arguments!r}, ['evaluate', {arguments[3]!r}])]\n"
        "raise SystemExit(str(codes))\n"
    )
    result = run_python("-OO", "-c", code)
    assert result.stderr.splitlines()[-1] == "[0, 0, 0, 0, 0]", result.stderr
    assert "digits-jr" in result.stdout
    assert "--loop.num-steps" in result.stdout
    assert RunRecord.read(tmp_path / "run").is_finished


def test_a_user_without_a_home_can_train_and_is_told_where_data_may_be_kept(tmp_path, monkeypatch, capfd):
    def forget(*_):
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME", "STEADEQ_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", forget)
    assert os.path.expanduser("~") == "~"
    for arguments in (("--help",), ("recipes",), ("data",), ("train", "synthetic", "--out", "run", *SHORT)):
        assert main(arguments) == 0, capfd.readouterr().err
    assert not (tmp_path / "~").exists()
    capfd.readouterr()
    assert main(["data", "cifar10", "--download"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "no home" in line
    assert "XDG_CACHE_HOME" in line
