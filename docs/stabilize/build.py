"""Makes the numbers, the figure and the tables of docs/stabilize.md.

    python docs/stabilize/build.py --train     # trains what results.json lacks; about fifteen minutes on one core
    python docs/stabilize/build.py             # draws the figure and fills the page in

Numbers are never typed by hand: the page has the text, and marks between which this script writes. A test compares the
page with the numbers. Weights and methods were chosen with seed 0, which is not among the seeds of the results, and the
claims below were written down before those were trained.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from steadeq import JacobianRegularizer, ResidualRegularizer, SpectralRegularizer
from steadeq.jacobian import AbstractRegularizer
from steadeq.solvers import LogNormalDepth

HERE = Path(__file__).parent
PAGE = HERE.parent / "stabilize.md"
NUMBERS = HERE / "results.json"
FIGURE = HERE / "accuracy.png"
SEEDS = (1, 2, 3)
NUM_STEPS, NUM_BITS, DEPTH = 600, 16, 12
FACTORS = (1, 2, 4, 16, 64)
DEPTHS = (*range(1, 25), *(DEPTH * factor for factor in (3, 4, 6, 8, 12, 16, 24, 32, 48, 64)))
LENGTHS = (64, 256)
"""Bits of longer strings than those of training."""


sys.path.insert(0, str(HERE.parents[1] / "examples"))
example: Any = importlib.import_module("06_stabilize_a_loop")


class IdentityBlock(nn.Module):
    """Adds to its state what two convolutions make of state and input: the state has a path of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Conv1d(2 * example.WIDTH, example.WIDTH, 3, padding=1)
        self.down = nn.Conv1d(example.WIDTH, example.WIDTH, 3, padding=1)

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the next state."""
        return z + self.down(torch.relu(self.up(torch.cat([z, x], dim=1))))


class NormalizedBlock(IdentityBlock):
    """The same, with a normalization at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(example.WIDTH)

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the next state."""
        return self.norm(super().forward(z, x).transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A block and what is done to stabilize it."""

    label: str
    block: Callable[[], nn.Module] = example.Block
    regularizer: AbstractRegularizer = field(default_factory=lambda: JacobianRegularizer(weight=0.0))
    depth: LogNormalDepth | None = None

    def num_segments(self, step: int) -> int:
        """Return how many answers are supervised at a step."""
        depth = DEPTH if self.depth is None else self.depth.draw(step)
        return max(round(depth / example.LOOPS), 1)


BEFORE, AFTER = "plain", "jacobian"
VARIANTS = {
    BEFORE: Variant(label="as it was"),
    AFTER: Variant(
        label='`JacobianRegularizer(weight=0.3, estimator="difference")`',
        regularizer=JacobianRegularizer(weight=0.3, estimator="difference"),
    ),
    "residual": Variant(label="`ResidualRegularizer(weight=1.0)`", regularizer=ResidualRegularizer(weight=1.0)),
    "spectral": Variant(
        label="`SpectralRegularizer(weight=0.1, probability=0.25)`",
        regularizer=SpectralRegularizer(weight=0.1, probability=0.25),
    ),
    "depth": Variant(label=f"random depth, `LogNormalDepth(mean={DEPTH})`", depth=LogNormalDepth(mean=DEPTH)),
    "identity": Variant(label="as it was", block=IdentityBlock),
    "identity-jacobian": Variant(
        label='`JacobianRegularizer(weight=0.3, estimator="difference")`',
        block=IdentityBlock,
        regularizer=JacobianRegularizer(weight=0.3, estimator="difference"),
    ),
    "identity-residual": Variant(
        label="`ResidualRegularizer(weight=1.0)`", block=IdentityBlock, regularizer=ResidualRegularizer(weight=1.0)
    ),
    "identity-depth": Variant(
        label=f"random depth, `LogNormalDepth(mean={3 * DEPTH})`, and `ResidualRegularizer(weight=3.0)`",
        block=IdentityBlock,
        regularizer=ResidualRegularizer(weight=3.0),
        depth=LogNormalDepth(mean=3 * DEPTH),
    ),
    "identity-norm": Variant(label="`LayerNorm` at the end of the block, no penalty", block=NormalizedBlock),
    "identity-norm-jacobian": Variant(
        label='`LayerNorm` at the end of the block and `JacobianRegularizer(weight=0.3, estimator="difference")`',
        block=NormalizedBlock,
        regularizer=JacobianRegularizer(weight=0.3, estimator="difference"),
    ),
}
"""What is compared: first the block of the example, then one with an identity path."""

Numbers = dict[str, dict[str, Any]]
"""Runs by `variant/seed`."""


def claims(numbers: Numbers) -> dict[str, bool]:
    """Return what was claimed before the runs were made, and whether each of them bears it out."""

    def all_runs(name: str, test: Callable[[Mapping[str, float]], bool]) -> bool:
        return all(test(numbers[f"{name}/{seed}"]["accuracy"]) for seed in SEEDS)

    return {
        f"Without the penalty, accuracy is at least 99% at {DEPTH} evaluations and below 50% at {4 * DEPTH}.": all_runs(
            BEFORE, lambda scores: scores[str(DEPTH)] >= 0.99 and scores[str(4 * DEPTH)] < 0.5
        ),
        f"With the penalty, accuracy is at least 99% at 1, 2, 4, 16 and 64 times {DEPTH} evaluations.": all_runs(
            AFTER, lambda scores: all(scores[str(factor * DEPTH)] >= 0.99 for factor in FACTORS)
        ),
        "With the penalty, at least 99% of strings of 64 bits are right after 192 evaluations.": all(
            numbers[f"{AFTER}/{seed}"]["longer"]["64"]["192"] >= 0.99 for seed in SEEDS
        ),
        f"On the block with an identity path, the same penalty leaves accuracy below 50% at {16 * DEPTH}.": all_runs(
            "identity-jacobian", lambda scores: scores[str(16 * DEPTH)] < 0.5
        ),
    }


def run(variant: Variant, seed: int) -> dict[str, Any]:
    """Train and measure a variant."""
    began = time.process_time()
    model = example.train(
        variant.regularizer,
        seed=seed,
        num_steps=NUM_STEPS,
        num_bits=NUM_BITS,
        num_segments=variant.num_segments,
        block=variant.block,
    )
    seconds = time.process_time() - began
    diagnosis = example.examine(model, num_bits=NUM_BITS, training_depth=DEPTH)
    radius = diagnosis.radius.value.median().item() if diagnosis.radius is not None else math.nan
    return {
        "seconds": round(seconds, 1),
        "accuracy": example.accuracy(model, num_bits=NUM_BITS, depths=DEPTHS),
        "longer": {
            num_bits: example.accuracy(
                model, num_bits=num_bits, depths=[DEPTH * factor for factor in FACTORS], count=64
            )
            for num_bits in LENGTHS
        },
        "verdicts": [verdict.name for verdict in diagnosis.verdicts],
        "radius": radius if math.isfinite(radius) else None,
    }


def read() -> Numbers:
    """Return the numbers that are kept."""
    return json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}


def train_missing(names: list[str]) -> None:
    """Make the runs that are not kept yet; each is kept when it is done."""
    for seed in SEEDS:
        for name in names:
            if f"{name}/{seed}" not in read():
                result = run(VARIANTS[name], seed)
                kept = {**read(), f"{name}/{seed}": result}
                ordered = {key: kept[key] for name in VARIANTS for seed in SEEDS if (key := f"{name}/{seed}") in kept}
                NUMBERS.write_text(json.dumps(ordered, indent=1, allow_nan=False) + "\n", encoding="utf-8")
                print(
                    name,
                    seed,
                    {f: result["accuracy"][f * DEPTH] for f in FACTORS},
                    f"{result['seconds']} s",
                    flush=True,
                )


def _percent(values: list[float]) -> str:
    """Return mean, least and largest in percent; only one of them where they agree."""
    low, high = (f"{100 * bound:.0f}" for bound in (min(values), max(values)))
    return f"{low}%" if low == high else f"{100 * mean(values):.0f}% ({low} to {high})"


def _table(names: list[str], numbers: Numbers) -> str:
    """Return the table of some variants: accuracy at multiples of the training depth, and the cost."""
    titles = ["", *(f"{factor} x" if factor > 1 else f"{DEPTH} evaluations" for factor in FACTORS), "converge", "s"]
    rows = [titles, ["---"] * len(titles)]
    for name in names:
        runs = [numbers[f"{name}/{seed}"] for seed in SEEDS]
        verdicts = [verdict for result in runs for verdict in result["verdicts"]]
        rows.append(
            [
                VARIANTS[name].label,
                *(_percent([result["accuracy"][str(DEPTH * factor)] for result in runs]) for factor in FACTORS),
                f"{100 * verdicts.count('CONVERGES') / len(verdicts):.0f}%",
                f"{mean(result['seconds'] for result in runs):.0f}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _longer(numbers: Numbers) -> str:
    """Return the table of longer strings, with the penalty."""
    rows = [["bits", *(f"{DEPTH * factor} evaluations" for factor in FACTORS)], ["---"] * (len(FACTORS) + 1)]
    for num_bits in LENGTHS:
        runs = [numbers[f"{AFTER}/{seed}"]["longer"][str(num_bits)] for seed in SEEDS]
        rows.append(
            [str(num_bits), *(_percent([scores[str(DEPTH * factor)] for scores in runs]) for factor in FACTORS)]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def fill(page: str, numbers: Numbers) -> str:
    """Return the page with its numbers as they must be."""
    others = [name for name in VARIANTS if name.startswith("identity")]
    blocks = {
        "table": _table([name for name in VARIANTS if name not in others], numbers),
        "longer": _longer(numbers),
        "identity": _table(others, numbers),
        "claims": "\n".join(
            f"* {'Holds' if is_true else 'Does not hold'}: {claim}" for claim, is_true in claims(numbers).items()
        ),
    }
    for name, block in blocks.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page, count = re.subn(pattern, lambda m, block=block: f"{m[1]}\n{block}\n\n{m[2]}", page, flags=re.DOTALL)
        assert count == 1, name
    return page


def draw(numbers: Numbers) -> None:
    """Draw accuracy against evaluations, before and after; a thin line for each seed, a thick one for their mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.add_subplot(xlabel="evaluations of the block", ylabel="strings fully right", xscale="log")
    for name, color, label in ((BEFORE, "#2a78d6", "before"), (AFTER, "#d1620f", "with the three lines")):
        curves = [[numbers[f"{name}/{seed}"]["accuracy"][str(depth)] for depth in DEPTHS] for seed in SEEDS]
        for curve in curves:
            axes.plot(DEPTHS, curve, color=color, linewidth=0.8, alpha=0.4)
        axes.plot(DEPTHS, [mean(scores) for scores in zip(*curves, strict=True)], color=color, linewidth=2, label=label)
    axes.axvline(DEPTH, color="#7d8691", linewidth=1.2, linestyle=(0, (3, 2)), label="training depth")
    ticks = [1, 3, 6, *(DEPTH * factor for factor in FACTORS)]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.15)
    axes.legend(frameon=False, loc="center right")
    figure.savefig(FIGURE, dpi=130, metadata={"Software": None})


def main() -> None:
    """Train what is missing if that is asked for, or else draw the figure and fill the page in."""
    parser = argparse.ArgumentParser(description="Make the numbers, the figure and the tables of the page.")
    parser.add_argument("--train", nargs="*", choices=VARIANTS, metavar="VARIANT", help="train all, or some, variants")
    options = parser.parse_args()
    if options.train is not None:
        torch.set_num_threads(1)
        train_missing(options.train or list(VARIANTS))
        return
    numbers = read()
    draw(numbers)
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
