"""Digits of config.json that somebody changed, and configs that never were any: refused, or without effect."""

import json
from pathlib import Path
from random import Random
from typing import Any

from torture import subjects
from torture.damages import use
from torture.words import hostile_value


def attempt_digit(draw: Random, folder: Path) -> None:
    """Change one digit of a run's config, and use the run."""
    kind = draw.choice(list(subjects.KINDS))
    path = subjects.copy_of(subjects.stopped(kind), folder)
    file = path / "config.json"
    text = file.read_text()
    place = draw.choice([index for index, letter in enumerate(text) if letter.isdigit()])
    digit = draw.choice([digit for digit in "0123456789" if digit != text[place]])
    file.write_text(text[:place] + digit + text[place + 1 :])
    use(draw, kind, path)


def attempt_tree(draw: Random, folder: Path) -> None:
    """Put something strange into a run's config, and use the run."""
    kind = draw.choice(("plain", "images"))
    path = subjects.copy_of(subjects.stopped(kind), folder)
    file = path / "config.json"
    content = json.loads(file.read_text())
    if draw.random() < 0.1:
        text = draw.choice(("", "null", "[]", '"run"', "1", "{", "[" * 100_000, '{"a":' * 100_000, "\ufeff{}", "NaN"))
        file.write_text(text)
    else:
        change(draw, content)
        file.write_text(json.dumps(content))
    use(draw, kind, path)


def change(draw: Random, tree: dict[str, Any]) -> None:
    """Change one leaf or branch of a tree: another value, another name, or none."""
    while True:
        name = draw.choice(list(tree))
        if not isinstance(tree[name], dict) or draw.random() < 0.2:
            break
        tree = tree[name]
    way = draw.random()
    if way < 0.1:
        del tree[name]
    elif way < 0.2:
        tree[hostile_value(draw)] = tree.pop(name)
    else:
        strange = [None, True, [], {}, [[]], 0, -1, 0.5, 1e400, -1e400, float("nan"), 2**63, 2**70, 10**400, [1] * 1000]
        tree[name] = draw.choice(
            [*strange, hostile_value(draw), {"class": hostile_value(draw)}, {"class": "os:system"}]
        )
