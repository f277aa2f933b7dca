"""Numbers as text."""

from __future__ import annotations

import math
from typing import Any

MISSING = "–"
"""Shown where there is no number."""


def number(value: float, digits: int = 3) -> str:
    """Return a number with some significant digits.

    Example:
        >>> number(0.0033467), number(0.5), number(18.0), number(5.5e-4), number(31234.0), number(12.34, 2)
        ('0.00335', '0.500', '18.0', '5.50e-4', '31,234', '12')
    """
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent < -3 or exponent > 6:
        return _scientific(value, digits)
    return f"{value:,.{max(digits - 1 - exponent, 0)}f}"


def _scientific(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def error_note(error: float | None, unknown: float | None = None) -> str:
    """Return what follows a number that was estimated: its error, and for which share of samples that is not known.

    Nothing follows where no error was recorded.

    Example:
        >>> error_note(0.0213), error_note(0.0213, 0.25), error_note(None, 1.0), error_note(None)
        (' (error 0.02)', ' (error 0.02, 25% unknown)', ' (error unknown)', '')
    """
    if unknown is not None and unknown >= 1:
        return " (error unknown)"
    if error is None or not math.isfinite(error):
        return ""
    return f" (error {number(error, 1)}, {unknown:.0%} unknown)" if unknown else f" (error {number(error, 1)})"


def small(value: float, digits: int = 3) -> str:
    """Return a number that may be small, with a power of ten below 0.1."""
    return _scientific(value, digits) if 0 < abs(value) < 0.1 else number(value, digits)


def whole(value: float) -> str:
    """Return a count, or a mean of counts, with its thousands set apart."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def duration(seconds: float, *, like: float | None = None) -> str:
    """Return a time in the unit that suits it; as a deviation of another time, in that time's unit and shorter.

    Example:
        >>> duration(0.0123), duration(4.2), duration(200), duration(7500)
        ('12.3 ms', '4.20 s', '3 min 20 s', '2 h 05 min')
        >>> duration(0.241, like=8.06)
        '0.24 s'
    """
    digits = 3 if like is None else 2
    if (seconds if like is None else like) < 1:
        return f"{number(1000 * seconds, digits)} ms"
    if seconds < 60:
        return f"{number(seconds, digits)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def memory(megabytes: float) -> str:
    """Return an amount of memory.

    Example:
        >>> memory(379.6), memory(20480.0)
        ('380 MB', '20.0 GB')
    """
    return f"{megabytes:.0f} MB" if megabytes < 1024 else f"{megabytes / 1024:.1f} GB"


def plural(count: int, noun: str) -> str:
    """Return a count and its noun.

    Example:
        >>> plural(1, "seed"), plural(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def setting(value: Any) -> str:
    """Return a value of a config.

    Example:
        >>> setting(2.0), setting(1e-4), setting((8, 16)), setting(None)
        ('2', '0.0001', '8, 16', 'none')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(map(setting, value))
    return "none" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
