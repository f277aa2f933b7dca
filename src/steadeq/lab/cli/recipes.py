"""`steadeq recipes`.

It reads the files of the recipes without importing them: importing torch takes seconds, and a list must come at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import InputError
from ..extension import EXTENSIONS, file_of
from ..terminal import answer, note
from .arguments import parse, positional
from .table import print_table

_FILES = Path(__file__).parents[1] / "recipes"
_SCALES = ("cpu", "day", "paper")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `recipes`."""

    words: tuple[str, ...] = positional(default=())
    """Words that the name or the description of a recipe must contain, as in `steadeq recipes cifar10 mdeq`."""
    scale: Literal["cpu", "day", "paper"] | None = None
    """Only recipes of one scale: cpu takes minutes on a laptop, day takes hours, paper needs GPUs."""


def run(arguments: Sequence[str]) -> int:
    """List what can be trained."""
    given = parse(Arguments, arguments, command="recipes", summary="List what can be trained.")
    rows = [
        [name, scale, summary]
        for name, scale, summary in sorted(listed(), key=lambda recipe: (_SCALES.index(recipe[1]), recipe[0]))
        if given.scale in (None, scale) and all(word.lower() in f"{name} {summary}".lower() for word in given.words)
    ]
    if not rows:
        at = "" if given.scale is None else f" at the scale {given.scale}"
        raise InputError(
            f"No recipe{at} matches the words {' '.join(given.words)!r}; `steadeq recipes` lists them all."
        )
    print_table(["recipe", "scale", "what it is"], rows)
    note(
        "Scales: `cpu` trains for minutes on two cores, `day` for up to an hour; `paper` needs GPUs, as the paper's "
        "own runs do."
    )
    note("`steadeq train RECIPE` trains one; `steadeq train RECIPE --help` lists all of its options.")
    answer([{"name": name, "scale": scale, "summary": summary} for name, scale, summary in rows])
    return 0


def listed() -> Iterator[tuple[str, str, str]]:
    """Yield name, scale and summary of each recipe of the package."""
    for path in (*_FILES.glob("*.py"), *(Path(file_of(extension.recipes)) for extension in EXTENSIONS)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "recipe":
                    scale = next(word.value for word in call.keywords if word.arg == "scale")
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    yield ast.literal_eval(call.args[0]), ast.literal_eval(scale), summary
