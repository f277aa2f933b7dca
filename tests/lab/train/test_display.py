"""What a person sees while a run goes on."""

import io
import itertools
import sys
import time

import pytest

from steadeq.lab.train.display import BarDisplay, Display, PlainDisplay, choose_display

VALUES = {"loss": 0.25, "forward_residual": 1e-3, "forward_evals": 6.0, "backward_evals": 5.0}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def show(display, title="mine"):
    with display:
        display.begin(title, 10, 2)
        for step in range(3, 11):
            display.advance(title, step, VALUES)
        display.say("a [bold] word")


@pytest.fixture
def later(monkeypatch):
    """A clock on which each look takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))


def test_plain_lines_are_few_and_the_last_step_is_among_them(capsys, later):
    show(PlainDisplay())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 4
    assert lines[-1] == "a [bold] word"
    assert lines[-2].startswith("mine: step 10/10")
    assert "\x1b" not in "".join(lines)
    for word in ("steps/s", "0:00 left", "loss 0.250", "residual 1.0e-03", "evals 6.0+5.0"):
        assert word in lines[-2]


@pytest.mark.parametrize(
    ("columns", "title", "words"),
    [
        ("160", "mine", ("mine", "10/10", "steps/s", "loss 0.250", "a [bold] word")),
        ("80", "a-name-that-is-longer-than-there-is-room-for-it", ("a-name-that", "10/10", "0:", "loss 0.250")),
    ],
)
def test_a_terminal_gets_a_bar_and_a_narrow_one_still_shows_steps_and_time_left(
    columns, title, words, monkeypatch, later
):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", terminal)
    display = choose_display()
    assert isinstance(display, BarDisplay)
    show(display, title)
    assert all(word in terminal.getvalue() for word in words)


def test_a_file_gets_plain_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(choose_display(), PlainDisplay)


@pytest.mark.parametrize("kind", [PlainDisplay, Display])
def test_values_that_are_missing_or_not_finite_do_no_harm(kind):
    with kind() as display:
        display.begin("mine", 2, 0)
        display.advance("mine", 1, {"loss": float("nan")})
        display.advance("mine", 2, {"loss": float("inf"), "forward_residual": float("nan")})
