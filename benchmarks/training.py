"""Where the time of a training step goes, for the recipes of the demo.

    python benchmarks/training.py

Writes results/training.json, and the table in docs/training.md.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from steadeq.lab import recipes
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.train import Trainer
from steadeq.lab.train.profile import SECTIONS, Profile

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "training.md"
RECIPES = ("synthetic", "synthetic-jr", "digits", "digits-jr")
NUM_STEPS = {"synthetic": 400, "synthetic-jr": 400, "digits": 84, "digits-jr": 84}


def measure(name: str) -> dict[str, float]:
    config = recipes.get(name).build()
    config = replace(config, loop=replace(config.loop, num_steps=NUM_STEPS[name]))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, RunFolder.create(Path(folder) / name, config), is_profiled=True)
        trainer.train()
    assert isinstance(trainer.profile, Profile)
    seconds = sum(value for section, value in trainer.profile.seconds.items() if section in SECTIONS)
    return {"ms_per_step": 1e3 * seconds / config.loop.num_steps, **trainer.profile.shares()}


def table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| | " + " | ".join(f"`{name}`" for name in results) + " |", "|---" * (len(results) + 1) + "|"]
    lines.append("| ms a step | " + " | ".join(f"{r['ms_per_step']:.1f}" for r in results.values()) + " |")
    for section, text in SECTIONS.items():
        lines.append(f"| {text} | " + " | ".join(f"{r[section]:.1%}" for r in results.values()) + " |")
    core = " | ".join(f"**{r['f'] + r['products']:.1%}**" for r in results.values())
    lines.append(f"| **f and its vjps together** | {core} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    results = {name: measure(name) for name in RECIPES}
    (HERE / "results" / "training.json").write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition("<!-- profile -->\n")
    after = rest[rest.index("Recompute with") :]
    PAGE.write_text(f"{before}<!-- profile -->\n\n{table(results)}\n\n{after}")
    print(table(results))


if __name__ == "__main__":
    main()
