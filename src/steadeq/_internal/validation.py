"""Refusing arguments in sentences that name them."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any


def check_count(name: str, value: Any, minimum: int = 1) -> None:
    """Refuse a count that is not an integer of at least `minimum`.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an integer >= {minimum}.")
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be an integer >= {minimum}.")


def check_number(name: str, value: Any) -> None:
    """Refuse what is not a number, such as text from a file of options.

    Raises:
        TypeError: The value is not a number.
    """
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; it must be a number.")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        ValueError: The value is not among them.
    """
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}.")


def check_step_length(name: str, value: float) -> None:
    """Refuse a step length outside (0, 1].

    Raises:
        ValueError: The value is outside.
    """
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}; it must be in (0, 1], where 1 is a full step.")


def check_probability(name: str, value: float) -> None:
    """Refuse what is no probability.

    Raises:
        ValueError: The value is outside [0, 1].
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}; it must be in [0, 1].")


def check_dropout(name: str, value: float) -> None:
    """Refuse what cannot be the probability of a zero in a dropout mask.

    Raises:
        ValueError: The value is outside [0, 1).
    """
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value!r}; it must be in [0, 1).")


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite.

    Raises:
        ValueError: The value is zero, negative, infinite or NaN.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; it must be a positive number.")


def check_not_negative(name: str, value: float) -> None:
    """Refuse a number that is negative or not finite.

    Raises:
        ValueError: The value is negative, infinite or NaN.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}; it must be a finite number >= 0.")


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Return " Did you mean ...?" for the choice nearest to a misspelled name, or nothing.

    Example:
        >>> suggestion("sythetic", ["synthetic", "digits"])
        " Did you mean 'synthetic'?"
    """
    nearest = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
