"""What commands show beside their results, and what scripts get."""

import io
import json
import logging
import shutil
import subprocess
import sys
import time

import pytest

from steadeq.lab import terminal
from steadeq.lab.cli.completion import words_of
from steadeq.lab.cli.main import PrintableFormatter, commands, main
from steadeq.lab.data.catalog import CATALOG
from steadeq.lab.terminal import Work
from steadeq.paper.catalog import RESULTS


class Screen(io.StringIO):
    def isatty(self):
        return True


def lines_of(monkeypatch, stream, *, seconds=1.0, num_parts=4, **options):
    """Return what is written to a stream by work whose parts take some seconds each."""
    clock = iter(range(1000))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(time, "monotonic", lambda: seconds * next(clock))
    monkeypatch.setattr(sys, "stderr", stream)
    with Work("Counting", num_parts, **options) as work:
        for _ in range(num_parts):
            work.advance()
    return stream.getvalue()


def test_a_terminal_shows_at_once_what_is_done_then_a_bar_with_the_time_left_and_nothing_at_the_end(monkeypatch):
    shown = lines_of(monkeypatch, Screen()).split("\r\x1b[K")
    assert shown[1] == "Counting  [....................]  0%"
    assert shown[2] == "Counting  [#####...............]  25%  0:06 left"  # each look at the clock takes a second
    assert shown[-1] == ""


def test_a_narrow_terminal_cuts_the_title_and_not_the_time_left(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    shown = lines_of(monkeypatch, Screen()).split("\r\x1b[K")
    assert shown[2] == "Counting  [#####...............]  25%  0:06 left"
    monkeypatch.setenv("COLUMNS", "46")
    assert "Countin  [" not in shown[2]
    assert all(len(line) <= 45 for line in lines_of(monkeypatch, Screen()).split("\r\x1b[K"))


def test_a_warning_does_not_share_a_line_with_a_bar(monkeypatch):
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    handler = logging.StreamHandler(screen)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    warning = logging.LogRecord("steadeq", logging.WARNING, __file__, 1, "Careful.", None, None)
    with Work("Counting", 4):
        handler.handle(warning)
    handler.handle(warning)
    assert screen.getvalue().endswith("0%\r\x1b[KCareful.\n\r\x1b[KCareful.\n")


def test_a_log_gets_a_line_every_ten_seconds_and_none_on_short_work(monkeypatch):
    shown = lines_of(monkeypatch, io.StringIO(), seconds=6.0, num_parts=6).splitlines()
    assert len(shown) == 3
    assert shown[0] == "Counting  17%  1:00 left"
    assert lines_of(monkeypatch, io.StringIO(), seconds=0.1) == ""


def test_a_reader_that_has_gone_does_not_stop_the_work(monkeypatch):
    class Closed(Screen):
        def write(self, text):
            raise BrokenPipeError

    lines_of(monkeypatch, Closed())


def test_json_is_all_that_standard_output_gets(capfd):
    assert main(["recipes", "prefix", "--json"]) == 0
    output = capfd.readouterr()
    assert [recipe["name"] for recipe in json.loads(output.out)] == ["prefix-sums", "prefix-sums-jr"]
    assert "what it is" in output.err


def test_quiet_leaves_the_table_and_no_notes(capfd):
    assert main(["recipes", "prefix", "--quiet"]) == 0
    output = capfd.readouterr().out
    assert "prefix-sums-jr" in output
    assert "Scales:" not in output
    assert not terminal.is_quiet()  # for the next command


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_completes_its_own_options(name, capfd):
    words = words_of(name)
    assert {"--quiet", "--json", "--help"} <= set(words)
    assert main([name, "--help"]) == 0
    shown = capfd.readouterr().out
    for word in words:
        assert not word.startswith("--") or word in shown + "--help", word


def test_all_results_and_data_sets_are_completed():
    assert {"all", *RESULTS} == {word for word in words_of("reproduce") if not word.startswith("--")}
    assert set(CATALOG) == {word for word in words_of("data") if not word.startswith("--")}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("ev", ["evaluate"]),
        ("train prefix", ["prefix-sums", "prefix-sums-jr"]),
        ("evaluate run --sp", ["--split"]),
        ("reproduce table", ["table1", "table2", "table3", "table4"]),
        ("data wiki", ["wikitext-103", "wikitext-2"]),
        ("bench k", ["kernels"]),
    ],
)
def test_bash_completes_commands_recipes_and_options(typed, completed, capfd):
    assert main(["completion", "bash"]) == 0
    words = ["steadeq", *typed.split()]
    script = f"""{capfd.readouterr().out}
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _steadeq; echo "${{COMPREPLY[@]}}\""""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed
