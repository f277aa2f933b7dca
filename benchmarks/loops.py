"""What penalties cost in loops of the shapes that others train, and how TRM's can have one for less.

    python benchmarks/loops.py --cost                  time and memory of a training step, for every shape (a minute)
    python benchmarks/loops.py --effect NAME/SEED ...  train the model of TRM's shape (half a minute each), or all
    python benchmarks/loops.py                         fill in docs/loops-of-others.md from results/loops.json

The models are those of examples/09_loops_of_others.py. Times are those of the processor on one thread, medians of
interleaved rounds relative to the step without a penalty; memory is the peak of what torch hands out during a step.

The effect on TRM's shape is that on a whole cycle, whatever was penalized: after 120 steps with two supervised answers
each, on strings of 8 bits, the mean of ‖J‖²_F / d and of the spectral radius of the cycle at the carried state, how far
a cycle still moves the state after 3 and after 48 cycles, and the strings right there. The candidates:

* cycle: the penalty on a whole cycle of 7 updates;
* once: on one update of each state;
* slow, fast: on one update of this state alone, with the other as an input;
* cycle, p = 1/4: on a quarter of the steps, with four times the weight; once, p = 1/2 likewise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from measure import peak_bytes
from torch import Tensor

from steadeq import (
    Equilibrium,
    JacobianRegularizer,
    ResidualRegularizer,
    SpectralRegularizer,
    frobenius_norm,
    spectral_radius,
)

HERE = Path(__file__).parent
NUMBERS = HERE / "results" / "loops.json"
PAGE = HERE.parent / "docs" / "loops-of-others.md"
NUM_ROUNDS, NUM_STEPS, WEIGHT, SEEDS = 15, 120, 0.3, (0, 1)
NUM_CYCLES = 3


sys.path.insert(0, str(HERE.parent / "examples"))
example: Any = importlib.import_module("09_loops_of_others")

Term = Callable[[Equilibrium], Tensor]


def nothing(eq: Equilibrium) -> Tensor:
    """Penalize nothing."""
    return torch.zeros(())


def penalties() -> dict[str, Term]:
    """Return the penalties whose cost is measured."""
    return {
        "none": nothing,
        "difference": JacobianRegularizer(weight=WEIGHT, estimator="difference"),
        "residual": ResidualRegularizer(weight=WEIGHT),
        "spectral, difference": SpectralRegularizer(weight=WEIGHT, estimator="difference"),
    }


class OfTRM:
    """A penalty on some part of TRM's step.

    Args:
        model: The model.
        part: The method of this class that picks the part.
        options: Options of the regularizer.
    """

    def __init__(self, model: Any, part: str, **options: Any) -> None:
        self._model, self._part = model, getattr(self, part)
        self._regularizer = JacobianRegularizer(**{"weight": WEIGHT, "estimator": "difference", **options})

    def __call__(self, eq: Equilibrium) -> Tensor:
        return self._regularizer(self._part(eq.z, *eq.inputs))

    def cycle(self, state: Any, x: Tensor) -> Equilibrium:
        return Equilibrium.at(self._model.cycle, state, x)

    def once(self, state: Any, x: Tensor) -> Equilibrium:
        return Equilibrium.at(self._model.once, state, x)

    def slow(self, state: Any, x: Tensor) -> Equilibrium:
        return Equilibrium.at(lambda high, low: self._model.net(high + low), state.high, state.low.detach())

    def fast(self, state: Any, x: Tensor) -> Equilibrium:
        net = self._model.net
        return Equilibrium.at(lambda low, high, x: net(low + high + x), state.low, state.high.detach(), x)


CANDIDATES: dict[str, Callable[[Any], Term]] = {
    "none": lambda model: nothing,
    "cycle": partial(OfTRM, part="cycle"),
    "once": partial(OfTRM, part="once"),
    "slow": partial(OfTRM, part="slow"),
    "fast": partial(OfTRM, part="fast"),
    "cycle, p = 1/4": partial(OfTRM, part="cycle", weight=4 * WEIGHT, probability=0.25),
    "once, p = 1/2": partial(OfTRM, part="once", weight=2 * WEIGHT, probability=0.5),
}
SHARES = {"cycle, p = 1/4": ("cycle", 4), "once, p = 1/2": ("once", 2)}
"""Candidates that cost a share of what another costs, on average over steps."""


def costs(steps: dict[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    """Return time and memory of each step relative to the first."""
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(NUM_ROUNDS):
        for name, step in steps.items():
            start = time.process_time()
            step()
            rounds[name].append(time.process_time() - start)
    memory = {name: peak_bytes(step) for name, step in steps.items()}
    first = next(iter(steps))
    return {
        name: {"time": median(rounds[name]) / median(rounds[first]), "memory": memory[name] / memory[first]}
        for name in steps
    }


def cost_of_shapes() -> dict[str, Any]:
    """Measure a training step of every model with every penalty."""
    found = {}
    for name, make in example.MODELS.items():
        torch.manual_seed(0)
        model, (bits, parities) = make(), example.draw_strings(16, 32)

        def step(term: Term, model: Any = model, bits: Tensor = bits, parities: Tensor = parities) -> None:
            # The same depths for all.
            random.seed(1)
            model.zero_grad()
            model.loss(bits, parities, term).backward()

        found[name] = costs({kind: partial(step, term) for kind, term in penalties().items()})
        print(name, json.dumps(found[name]), flush=True)
    model, (bits, parities) = example.TRM(), example.draw_strings(16, 32)

    def drawn(make: Callable[[Any], Term]) -> Callable[[], None]:
        term = make(model)

        def run() -> None:
            for _ in range(4):
                model.zero_grad()
                model.loss(bits, parities, term).backward()

        return run

    found["candidates"] = costs({name: drawn(make) for name, make in CANDIDATES.items() if name not in SHARES})
    return found


def effect(name: str, seed: int) -> dict[str, float]:
    """Train the model of TRM's shape with one of the candidates, and look at its whole cycle."""
    torch.manual_seed(seed)
    model = example.TRM()
    term, optimizer = CANDIDATES[name](model), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(NUM_STEPS):
        bits, parities = example.draw_strings(16, 8)
        carry = None
        for _ in range(2):
            loss = model.loss(bits, parities, term, carry)
            carry = model.carry
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    torch.manual_seed(77)
    bits, parities = example.draw_strings(64, 8)
    result: dict[str, float] = {}
    with torch.no_grad():
        x = model.embed(bits)
        carry = kept = example.Carry(torch.zeros_like(x), torch.zeros_like(x))
        for number in range(1, 16 * NUM_CYCLES + 1):
            before, carry = carry, model.cycle(carry, x)
            if number in (NUM_CYCLES, 16 * NUM_CYCLES):
                right = (model.head(carry.high).argmax(dim=2) == parities).all(dim=1)
                moved = (carry.high - before.high).norm() / carry.high.norm()
                result |= {f"right at {number}": right.double().mean().item(), f"moved at {number}": moved.item()}
            if number == NUM_CYCLES:
                kept = carry
    first = example.Carry(kept.high[:16], kept.low[:16])
    eq = Equilibrium.at(model.cycle, first, x[:16].detach())
    dim = first.high[0].numel() * 2
    result["norm"] = frobenius_norm(eq, num_probes=8).value.square().mean().item() / dim
    return result | {"radius": spectral_radius(eq, max_products=40).value.mean().item()}


def read() -> dict[str, Any]:
    """Return what was measured."""
    return json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}


def keep(key: str, value: Any) -> None:
    """Add a measurement to those that are kept."""
    text = json.dumps({**read(), key: value}, indent=1, sort_keys=True)
    NUMBERS.write_text(text + "\n", encoding="utf-8")


def _between(page: str, mark: str, text: str) -> str:
    return re.sub(
        rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", lambda m: f"{m[1]}\n{text}\n\n{m[2]}", page, flags=re.DOTALL
    )


def _spread(values: list[float], form: str) -> str:
    if not values:
        return "-"
    low, high = (form.format(value) for value in (min(values), max(values)))
    return low if low == high else f"{form.format(mean(values))} ({low} to {high})"


def _table(rows: list[list[str]]) -> str:
    return "\n".join("|" + "|".join(row) + "|" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def fill(page: str, numbers: dict[str, Any]) -> str:
    """Return the page with its tables made of the numbers."""
    cost = numbers["cost"]
    kinds = [kind for kind in penalties() if kind != "none"]

    def both(measured: dict[str, float], share: int = 1) -> str:
        return f"{1 + (measured['time'] - 1) / share:.2f}/{measured['memory']:.2f}"

    rows = [[name, *(both(cost[name][kind]) for kind in kinds)] for name in example.MODELS]
    page = _between(page, "cost", _table([["time/memory", *kinds], *rows]))
    columns = {
        "norm": ("‖J‖²_F / d", "{:.3f}"),
        "radius": ("radius", "{:.2f}"),
        "moved at 3": ("moved, 3", "{:.3f}"),
        "moved at 48": ("moved, 48", "{:.0e}"),
        "right at 3": ("right, 3", "{:.0%}"),
        "right at 48": ("right, 48", "{:.0%}"),
    }
    rows = [["penalty on", "time/memory", *(title for title, _ in columns.values())]]
    for name in CANDIDATES:
        runs = [value for key, value in numbers.items() if key.rpartition("/")[0] == f"effect/{name}"]
        cells = (_spread([run[column] for run in runs], form) for column, (_, form) in columns.items())
        whole, share = SHARES.get(name, (name, 1))
        rows.append([name, both(cost["candidates"][whole], share), *cells])
    return _between(page, "candidates", _table(rows))


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description="Cost and effect of penalties in loops of others.")
    parser.add_argument("--cost", action="store_true", help="measure time and memory")
    parser.add_argument("--effect", nargs="+", default=[], metavar="NAME/SEED", help="train these, or all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cost:
        keep("cost", cost_of_shapes())
    names = [f"{name}/{seed}" for seed in SEEDS for name in CANDIDATES] if options.effect == ["all"] else options.effect
    for name in names:
        kind, seed = name.rsplit("/", 1)
        if f"effect/{name}" not in read():
            keep(f"effect/{name}", effect(kind, int(seed)))
            print(name, json.dumps(read()[f"effect/{name}"]), flush=True)
    if not options.cost and not names:
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")


if __name__ == "__main__":
    main()
