"""Finished runs as small files: their numbers without their weights, to be kept with the source code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_atomically
from .record import RunRecord, sessions_to_json

BEYOND_FILE = "beyond.json"
"""What is measured beyond the depth and the size of training, where it is."""
FILES = ("config.json", "metrics.jsonl", "evaluation.json", "costs.json", BEYOND_FILE)
"""What is kept as it is, where it is there; of environment.json, all but the arguments of the command line."""
_PLACE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]|file:")
"""How the name of a place on a machine begins."""


def archive_run(path: Path, target: Path) -> None:
    """Copy what a finished run recorded into another folder, which `RunRecord.read` reads as it reads the run's own.

    Nothing about the machine is kept but its kind: no arguments of the command line, and no name of a folder, so that a
    run whose config has one is refused.

    Args:
        path: The run's folder; the run is finished, or it diverged.
        target: The folder that is written, with a name for each run.
    """
    record = RunRecord.read(path)
    if not (record.is_finished or record.has_diverged):
        raise InputError(f"{path} is not finished; only finished runs can be archived.")
    texts = {name: (path / name).read_text(encoding="utf-8") for name in FILES if (path / name).is_file()}
    texts["environment.json"] = sessions_to_json([replace(session, arguments=()) for session in record.sessions])
    for name, text in texts.items():
        for place in _places(text):
            raise InputError(f"{path / name} names {place!r}, a path on this machine; such a run cannot be archived.")
    target.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if not (target / name).is_file() or (target / name).read_text(encoding="utf-8") != text:
            write_atomically(target / name, text)


def _places(text: str) -> Iterator[str]:
    """Return what looks like a path in a file of JSON, or of a JSON object in each line."""
    try:
        documents = [json.loads(text)]
    except ValueError:
        documents = [json.loads(line) for line in text.splitlines() if line.strip()]
    for document in documents:
        yield from (found for found in _strings(document) if _PLACE.match(found))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from (*_strings(name), *_strings(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
