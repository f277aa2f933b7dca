"""The display of a run in progress: a progress bar in a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ..terminal import describe_seconds, is_quiet

_BAR_SECONDS, _LINE_SECONDS = 0.1, 5.0


class Display:
    """Shows runs by their titles, in a context that begins and ends with them.

    This one shows nothing: for all processes but the main one, and for tests.
    """

    def begin(self, title: str, num_steps: int, step: int) -> None:
        """Show a run's step and its number of steps."""

    def advance(self, title: str, step: int, values: dict[str, float]) -> None:
        """Show that a step is done, with its loss, residual and evaluations."""

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""


class LastingDisplay(Display):
    """Shows what another display shows until that fails, as when its reader has gone or a disk is full.

    From then on it shows nothing; it reports that once, and training goes on.
    """

    def __init__(self, display: Display, failed: Callable[[str], None]) -> None:
        self._display, self._failed = display, failed

    def begin(self, title: str, num_steps: int, step: int) -> None:
        self._try("begin", title, num_steps, step)

    def advance(self, title: str, step: int, values: dict[str, float]) -> None:
        self._try("advance", title, step, values)

    def say(self, text: str) -> None:
        self._try("say", text)

    def __enter__(self) -> Display:
        self._try("__enter__")
        return self

    def __exit__(self, *error: object) -> None:
        self._try("__exit__", *error)

    def _try(self, name: str, *arguments: Any) -> None:
        try:
            getattr(self._display, name)(*arguments)
        except (OSError, ValueError, SystemExit) as error:
            # A ValueError is a file that is closed, and rich leaves by a SystemExit when its reader has gone.
            self._display = Display()
            self._failed(f"its output could not be written ({getattr(error, 'strerror', None) or 'it is closed'})")


class _Clock:
    """How fast a run goes, and when it was last shown."""

    def __init__(self, num_steps: int, step: int) -> None:
        self.num_steps = num_steps
        self._first, self._started, self._shown = step, time.monotonic(), -1.0

    def is_due(self, step: int, seconds: float) -> bool:
        """Return whether so many seconds have passed since this was last true, or the run is at its end."""
        moment = time.monotonic()
        if moment - self._shown < seconds and step < self.num_steps:
            return False
        self._shown = moment
        return True

    def rate(self, step: int) -> float | None:
        """Return steps per second; None as long as too little has happened to tell."""
        elapsed = time.monotonic() - self._started
        return None if elapsed < 1 or step <= self._first else (step - self._first) / elapsed


class PlainDisplay(Display):
    """A line every few seconds."""

    def __init__(self) -> None:
        self._clocks: dict[str, _Clock] = {}

    def begin(self, title: str, num_steps: int, step: int) -> None:
        self._clocks[title] = _Clock(num_steps, step)

    def advance(self, title: str, step: int, values: dict[str, float]) -> None:
        clock = self._clocks[title]
        if clock.is_due(step, _LINE_SECONDS):
            rate, pace = clock.rate(step), ""
            if rate is not None:
                pace = f"{rate:.1f} steps/s  {describe_seconds((clock.num_steps - step) / rate)} left  "
            self.say(f"{title}: step {step}/{clock.num_steps}  {pace}{describe(values)}")

    def say(self, text: str) -> None:
        print(text, flush=True)


class BarDisplay(Display):
    """A progress bar for each run, with rate, time left, loss, residual and evaluations."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._console = Console()
        # Where a line is short, the time left matters more than the rate, the residual and the end of a name.
        self._is_narrow = self._console.width < 120
        name = Column(no_wrap=True, overflow="ellipsis", max_width=max(self._console.width - 50, 10))
        rate = () if self._is_narrow else (TextColumn("{task.fields[rate]}"),)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=name),
            BarColumn(bar_width=10 if self._is_narrow else 20),
            TextColumn("{task.completed}/{task.total}"),
            *rate,
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self._console,
            # A thread that draws would fail where nobody could catch it.
            auto_refresh=False,
        )
        self._bars: dict[str, tuple[Any, _Clock]] = {}

    def begin(self, title: str, num_steps: int, step: int) -> None:
        self._progress.start()
        bar = self._progress.add_task(title, total=num_steps, completed=step, rate="", note="")
        self._bars[title] = bar, _Clock(num_steps, step)

    def advance(self, title: str, step: int, values: dict[str, float]) -> None:
        bar, clock = self._bars[title]
        if clock.is_due(step, _BAR_SECONDS):
            rate = clock.rate(step)
            shown = "" if rate is None else f"{rate:.1f} steps/s"
            note = describe(values)
            if self._is_narrow:
                note = note.partition("  ")[0]
            self._progress.update(bar, completed=step, rate=shown, note=note, refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def choose_display() -> Display:
    """Return a bar if standard output is a terminal, else plain lines; nothing where only results are wanted."""
    if is_quiet():
        return Display()
    return BarDisplay() if sys.stdout.isatty() else PlainDisplay()


def describe(values: dict[str, float]) -> str:
    """Return loss, residual and evaluations in a few words.

    Example:
        >>> describe({"loss": 0.5, "forward_residual": 0.001, "forward_evals": 6.0, "backward_evals": 5.5})
        'loss 0.500  residual 1.0e-03  evals 6.0+5.5'
    """
    parts = [f"loss {values['loss']:.3f}"]
    if "forward_residual" in values:
        parts.append(f"residual {values['forward_residual']:.1e}")
    if "forward_evals" in values:
        backward = f"+{values['backward_evals']:.1f}" if "backward_evals" in values else ""
        parts.append(f"evals {values['forward_evals']:.1f}{backward}")
    return "  ".join(parts)
