"""Options that are given by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from .validation import suggestion


class NamedOptions:
    """A base of keyword-only dataclasses: says in a sentence what is wrong with the way options are given.

    Example:
        >>> from steadeq import JacobianRegularizer
        >>> JacobianRegularizer(0.3)
        Traceback (most recent call last):
        TypeError: JacobianRegularizer takes keyword arguments only, as in JacobianRegularizer(weight=0.3).
    """

    def __new__(cls, *values: Any, **options: Any) -> Any:
        """Refuse values without a name, and names that are none."""
        names = [field.name for field in dataclasses.fields(cls) if field.init]  # pyright: ignore[reportArgumentType]
        if values:
            example = f"{cls.__name__}({', '.join(f'{n}={v!r}' for n, v in zip(names[:1], values[:1], strict=True))})"
            raise TypeError(f"{cls.__name__} takes keyword arguments only, as in {example}.")
        for name in options:
            if name not in names:
                raise TypeError(
                    f"{cls.__name__} has no option {name!r}; it has {', '.join(names)}.{suggestion(name, names)}"
                )
        return super().__new__(cls)
