"""Attacks: functions of random numbers and an empty folder, whose tries have numbers by which each can be repeated."""

import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

Attempt = Callable[[random.Random, Path], None]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A try that did not hold."""

    attack: str
    number: int
    reason: str

    @property
    def reproduction(self) -> str:
        """The command that makes the same try."""
        return f'make torture ARGS="{self.attack}:{self.number}"'


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A way to do harm, in many variants."""

    name: str
    attempt: Attempt
    """Makes one try, and raises an AssertionError if it does harm."""
    num_tries: int
    """Tries of `make torture`."""
    num_quick: int
    """Tries of `make test`: the first ones."""

    def run(self, numbers: Iterable[int], *, workers: int = 1) -> list[Failure]:
        """Make some of the tries, and return those that failed."""
        with ThreadPoolExecutor(workers) as pool:
            return [failure for failure in pool.map(self._try, numbers) if failure is not None]

    def _try(self, number: int) -> Failure | None:
        draw = random.Random(f"{self.name}:{number}")
        with tempfile.TemporaryDirectory(prefix=f"torture-{self.name}-") as folder:
            try:
                self.attempt(draw, Path(folder).resolve())
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                reason = str(error) or f"{type(error).__name__}: {place.line}"
                return Failure(attack=self.name, number=number, reason=" ".join(reason.split()))
        return None


def timed(attack: Attack, numbers: Iterable[int], *, workers: int) -> tuple[list[Failure], float]:
    """Return the failures of an attack, and how many seconds it took."""
    start = time.monotonic()
    return attack.run(numbers, workers=workers), time.monotonic() - start
