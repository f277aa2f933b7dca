"""Refusing values of a config, by the name of their option."""

from __future__ import annotations

import math

from ..errors import InputError


def check_at_least(section: str, config: object, minimum: float, *names: str) -> None:
    """Refuse fields of a config that are smaller, or not finite.

    Raises:
        InputError: Naming the first one.
    """
    for name in names:
        value = getattr(config, name)
        if not minimum <= value < math.inf:
            raise InputError(f"{section}.{name} is {value}; it must be at least {minimum}.")


def check_positive(section: str, config: object, *names: str) -> None:
    """Refuse fields of a config that are not positive and finite.

    Raises:
        InputError: Naming the first one.
    """
    for name in names:
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise InputError(f"{section}.{name} is {value}; it must be a positive number.")


def check_fraction(section: str, config: object, *names: str) -> None:
    """Refuse fields of a config that are not in [0, 1).

    Raises:
        InputError: Naming the first one.
    """
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise InputError(f"{section}.{name} is {value}; it must be in [0, 1).")
