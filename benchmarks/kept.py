"""Numbers that are kept as JSON, and shown in the README."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, with the options that every benchmark has."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers are kept")
    parser.add_argument("--markdown", action="store_true", help="measure nothing; put the kept numbers into the README")
    arguments = parser.parse_args()
    if arguments.markdown and arguments.json is None:
        parser.error("--markdown needs --json FILE with the numbers")
    return arguments


def read(path: Path) -> Any:
    """Return the numbers of a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path | None, results: Any) -> None:
    """Keep numbers in a file, if one was named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def rewrite_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two markers of a file."""
    before, rest = path.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
