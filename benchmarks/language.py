"""What it saves to compute once a solve what does not depend on the iterate, in DEQ-Transformers.

    python benchmarks/language.py           measure, print, write results/language.json and the table in README.md

Keys and values of the memory and the projected positions are computed before a solve and shared by its evaluations. The
other contender computes them in every evaluation, as the official code does. Both take turns in one process with one
thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import time_interleaved

from steadeq import models
from steadeq.models import DEQTransformerLM
from steadeq.nn import cached_parameters

HERE = Path(__file__).parent
NUM_EVALS = 12
SIZES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "deq-transformer/wt2-cpu": (16, 64, {}),
    "deq-transformer/wt103-jr": (1, 150, {}),
    "deq-transformer/wt103-jr, map of 2,800 features": (1, 150, {"hidden_features": 2_800}),
}
"""Batch size, length and changes of each preset."""


def contenders(model: DEQTransformerLM, batch_size: int, length: int) -> dict[str, Callable[[], None]]:
    cell = model.cell
    memory = torch.randn(batch_size, model.config.memory_length, cell.features)
    width = 3 * cell.attention.num_heads * cell.attention.head_features
    past, x = torch.randn(batch_size, model.config.memory_length, width), torch.randn(batch_size, length, width)
    z0 = torch.zeros(batch_size, length, cell.features)

    def once() -> None:
        with torch.no_grad(), cached_parameters(cell):
            shared = cell.prepare(length, memory=memory, injected=past)
            z = z0
            for _ in range(NUM_EVALS):
                z = cell(z, x, *shared)

    def each_time() -> None:
        with torch.no_grad(), cached_parameters(cell):
            z = z0
            for _ in range(NUM_EVALS):
                z = cell(z, x, *cell.prepare(length, memory=memory, injected=past))

    return {"once": once, "each time": each_time}


def main() -> None:
    torch.set_num_threads(1)
    results = {}
    for name, (batch_size, length, changes) in SIZES.items():
        torch.manual_seed(0)
        # The tables of tokens take no part in this.
        model = models.create(name.split(",")[0], vocab_size=1_000, cutoffs=(), **changes)
        assert isinstance(model, DEQTransformerLM)
        times = time_interleaved(contenders(model, batch_size, length), seconds=20, min_rounds=5)
        results[name] = {
            "batch_size": batch_size,
            "length": length,
            "memory": model.config.memory_length,
            "once_ms": 1e3 * times["once"].typical,
            "ratio": times["each time"].typical / times["once"].typical,
        }
    (HERE / "results" / "language.json").write_text(json.dumps(results, indent=1) + "\n")
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition("<!-- language -->\n")
    after = rest.partition("<!-- /language -->")[2]
    page.write_text(f"{before}<!-- language -->\n\n{table(results)}\n\n<!-- /language -->{after}")
    print(table(results))


def table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| | batch, length, memory | once, ms | each time |", "|---|---|---|---|"]
    for name, found in results.items():
        sizes = f"{found['batch_size']}, {found['length']}, {found['memory']}"
        lines.append(f"| {name} | {sizes} | {found['once_ms']:.0f} | {found['ratio']:.2f} times as long |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
