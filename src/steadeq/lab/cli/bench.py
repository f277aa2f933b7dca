"""`steadeq bench`: runs the benchmark of a checkout; an installed package does not have it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import InputError, RunError
from ..terminal import Work, answer, clear_bar
from .arguments import parse, positional

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "overhead.py"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `bench`."""

    parts: tuple[
        Literal["overhead", "compiled", "waiting", "train", "memory", "kernels", "limits", "compaction"], ...
    ] = positional(default=())
    """What to measure: overhead, compiled, waiting, train, memory, kernels, limits, compaction; by default overhead and
    train."""
    quick: bool = False
    """Measure for seconds instead of minutes; the numbers are rough."""


def run(arguments: Sequence[str]) -> int:
    """Measure the overhead of the library next to its peers."""
    summary = (
        "Measure what a solve costs beyond its evaluations of f, next to torchdeq and to loops written by hand. It "
        "needs a checkout of the repository; `make bench` there installs torchdeq too."
    )
    args = parse(Arguments, arguments, command="bench", summary=summary)
    if not BENCHMARK.is_file():
        raise InputError("`steadeq bench` needs a checkout of the repository; clone it and run `make bench` there.")
    parts = args.parts or ("overhead", "train")
    takes = "" if args.quick else ", which takes minutes"
    with tempfile.TemporaryDirectory() as folder, Work(f"Measuring {', '.join(parts)}{takes} ...") as work:
        numbers = Path(folder) / "numbers.json"
        options = ["--json", str(numbers), "--only", *parts, *(["--quick"] if args.quick else [])]
        command = [sys.executable, str(BENCHMARK), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
            assert process.stdout is not None
            for line in process.stdout:
                clear_bar()
                print(line, end="", flush=True)
                # The bar comes back below the line.
                work.doing("")
        if process.returncode != 0:
            raise RunError("The benchmark stopped; the lines above say why.")
        answer(json.loads(numbers.read_text(encoding="utf-8")))
    return 0
