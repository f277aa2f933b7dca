"""JSON of a run that is deep, long or odd, and readers with little memory: one sentence, or the right answer."""

import json
import resource
from pathlib import Path
from random import Random

from torture import subjects
from torture.configs import change
from torture.damages import look, resume
from torture.process import command

TEXTS = (
    *("[" * 200_000, '{"a":' * 200_000, "1" + "0" * 100_000, "1e" + "9" * 1000, '"' + "\\u0000" * 1000 + '"', "NaN"),
    *("-Infinity", "\ufeff{}", '{"a": 1, "a": 2}', "nul", "[]", "{}", '"\\ud800"', "[1,]", " " * 1_000_000),
)
FILES = (
    "evaluation.json",
    "environment.json",
    "metrics.jsonl",
    "config.json",
    "checkpoints/step-00000006/checksums.json",
)


def attempt(draw: Random, folder: Path) -> None:
    """Put odd JSON into a run, or give a reader little memory, and use the run."""
    path = subjects.copy_of(subjects.stopped("plain"), folder)
    name = draw.choice(("resume", "evaluate", "diagnose", "report", "report"))
    if draw.random() < 0.2:
        # Beyond what the interpreter has mapped at the start.
        pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = {resource.RLIMIT_AS: pages + draw.choice((1, 30, 100, 300)) * 2**20}
        words = ("train", "--resume", "--out", "run") if name == "resume" else (name, "run")
        outcome = command(*words, folder=folder, environment=subjects.environment(folder), limits=limits)
    else:
        _spoil(draw, path / draw.choice(FILES))
        outcome = resume(path) if name == "resume" else look(name, path)
    outcome.check(0, 1, 2)


def _spoil(draw: Random, file: Path) -> None:
    text = draw.choice(TEXTS)
    if draw.random() < 0.5 and file.exists():
        first, *rest = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        content = json.loads(first)
        if isinstance(content, dict):
            change(draw, content)
        text = "\n".join([json.dumps(content), *rest])
    file.write_text(text, errors="surrogatepass")
