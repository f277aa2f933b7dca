"""Data that is no longer what a run was trained with: refused by whoever uses the run."""

import random
import shutil
from pathlib import Path
from random import Random

from torture import subjects
from torture.process import command

USES = {
    "train": ("train", "--resume", "--out", "run"),
    "evaluate": ("evaluate", "run", "--split", "validation", "--budgets", "2"),
    "diagnose": ("diagnose", "run", "--num-samples", "2", "--max-evals", "16", "--max-products", "2"),
    "generate": ("generate", "run", "--num-tokens", "2"),
}


def attempt(draw: Random, folder: Path) -> None:
    """Change the text of a run that was stopped, and use the run."""
    subjects.copy_of(subjects.stopped("text"), folder)
    data = Path(shutil.copytree(subjects.data(), folder / "data"))
    use, way = draw.choice(list(USES)), draw.choice(("permuted", "permuted", "shuffled", "nothing"))
    for file in sorted((data / "wikitext-2").iterdir()):
        words = file.read_text().split()
        if way == "permuted":
            # Each word stands where another one stood, so that all numbers stay what they were.
            words = [f"w{int(word[1:]) * 5 % 13}" for word in words]
        elif way == "shuffled":
            # What comes first decides on the numbers of words that are equally frequent.
            tail = words[13:]
            random.Random(draw.random()).shuffle(tail)
            words = [*words[:13], *tail]
        file.write_text(" ".join(words) + "\n")
    environment = {**subjects.environment(folder), "STEADEQ_DATA": str(data)}
    outcome = command(*USES[use], folder=folder, environment=environment)
    # Which text comes after which words is no matter to who only wants words.
    if way == "nothing" or (way, use) == ("shuffled", "generate"):
        outcome.check(0)
        return
    outcome.check(2)
    expected = "another vocabulary" if way == "permuted" else "other data"
    assert expected in outcome.errors, outcome.tail
