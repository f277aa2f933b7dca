"""A training step and an inference of multiscale DEQs, next to the peer's solvers and to explicit networks.

    python benchmarks/vision.py             measure, print, write results/vision.json and the table in README.md

The peer solves the very same network: same cell, same weights, same number of evaluations and products, weights
normalized once a solve for both. All contenders take turns in one process with one thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contenders import peer_version
from measure import time_interleaved
from torch import Tensor, nn
from torch.nn import functional as F

from steadeq import GMRES, Broyden, Implicit, models
from steadeq.models import MDEQClassifier
from steadeq.nn import cached_parameters

HERE = Path(__file__).parent
NUM_EVALS = 8
SIZES = {"mdeq/cifar10-tiny": 16, "mdeq/cifar10": 4}
"""Batch size of each model."""
EXPLICIT = {"ResNet-18": "resnet/18", "ResNet-101": "resnet/101"}


def run_steadeq(model: MDEQClassifier, x: Tensor) -> Tensor:
    memory = NUM_EVALS
    solver = Broyden(max_evals=NUM_EVALS, tol=0, memory=memory)
    adjoint = Implicit(GMRES(max_evals=NUM_EVALS, tol=0, memory=memory))
    return model(x, solver=solver, adjoint=adjoint)


def make_peer() -> Callable[[MDEQClassifier, Tensor], Tensor]:
    from torchdeq import get_deq

    # It does not count the evaluation at the start; its backward solve makes as many products as it is told.
    layer = get_deq(
        f_solver="broyden",
        b_solver="broyden",
        f_max_iter=NUM_EVALS - 1,
        b_max_iter=NUM_EVALS - 1,
        f_tol=0.0,
        b_tol=0.0,
        f_stop_mode="rel",
        b_stop_mode="rel",
        hook_ift=True,
    )

    def run(model: MDEQClassifier, x: Tensor) -> Tensor:
        z0, inputs = model.encode(x)
        layer.train(model.training)
        with cached_parameters(model.layer.cell):
            states, _ = layer(lambda *z: model.layer.cell(z, *inputs), z0)
        return model.decode(states[-1])

    return run


def step(run: Callable[[Any, Tensor], Tensor], model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    def train() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        F.cross_entropy(run(model, x), y).backward()

    return train


def inference(run: Callable[[Any, Tensor], Tensor], model: nn.Module, x: Tensor) -> Callable[[], None]:
    def infer() -> None:
        model.eval()
        with torch.no_grad():
            run(model, x)

    return infer


def measure(name: str, batch_size: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model = models.create(name, dropout=0.0)
    assert isinstance(model, MDEQClassifier)
    x, y = torch.randn(batch_size, 3, 32, 32), torch.arange(batch_size) % 10
    runs: dict[str, tuple[Callable[[Any, Tensor], Tensor], nn.Module]] = {"steadeq": (run_steadeq, model)}
    if peer_version() is not None:
        runs["torchdeq"] = (make_peer(), model)
    for label, preset in EXPLICIT.items():
        runs[label] = (lambda network, images: network(images), models.create(preset, stem="cifar"))
    results = {}
    for what in ("step", "inference"):
        contenders = {
            label: step(run, network, x, y) if what == "step" else inference(run, network, x)
            for label, (run, network) in runs.items()
        }
        times = time_interleaved(contenders, seconds=20, min_rounds=5)
        results[what] = {label: times[label].typical / times["steadeq"].typical for label in runs}
        results[what]["steadeq_ms"] = 1e3 * times["steadeq"].typical
    return results


def count_evaluations(run: Callable[[Any, Tensor], Tensor], model: MDEQClassifier) -> int:
    calls = []
    hook = model.layer.cell.register_forward_hook(lambda *_: calls.append(1))
    model.eval()
    with torch.no_grad():
        run(model, torch.randn(2, 3, 32, 32))
    hook.remove()
    return len(calls)


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    labels = [label for label in next(iter(results.values()))["step"] if label not in ("steadeq", "steadeq_ms")]
    lines = ["| | steadeq, ms | " + " | ".join(labels) + " |", "|---" * (len(labels) + 2) + "|"]
    for name, parts in results.items():
        for what, ratios in parts.items():
            cells = " | ".join(f"{ratios[label]:.2f}" for label in labels)
            lines.append(f"| {name}, {what} | {ratios['steadeq_ms']:.0f} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    tiny = models.create("mdeq/cifar10-tiny", dropout=0.0)
    assert isinstance(tiny, MDEQClassifier)
    counts = {"steadeq": count_evaluations(run_steadeq, tiny)}
    if peer_version() is not None:
        counts["torchdeq"] = count_evaluations(make_peer(), tiny)
    print("evaluations in an inference:", counts)
    results = {name: measure(name, batch_size) for name, batch_size in SIZES.items()}
    (HERE / "results" / "vision.json").write_text(json.dumps({"evaluations": counts, **results}, indent=1) + "\n")
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition("<!-- vision -->\n")
    after = rest.partition("<!-- /vision -->")[2]
    page.write_text(f"{before}<!-- vision -->\n\n{table(results)}\n\n<!-- /vision -->{after}")
    print(table(results))


if __name__ == "__main__":
    main()
