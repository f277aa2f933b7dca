"""Does a loop that settles stand fewer bits? Weights are rounded after training, with and without the penalty.

    python benchmarks/few_bits.py --run 0.3/4        train and measure one model: weight of the penalty / seed
    python benchmarks/few_bits.py --run all          those that results/few_bits.json lacks (ten minutes on one core)
    python benchmarks/few_bits.py                    draw the figure and fill in docs/few-bits.md

The task is that of docs/stabilize.md: prefix sums of 16 bits, 12 evaluations of a convolutional block, 600 steps. Then
the weights of all layers are rounded to b bits for each output channel, symmetrically (2^b - 1 levels up to the largest
weight of the channel); biases stay. The rival is quantization-aware tuning: the model without a penalty is trained on
for 150 steps with its weights rounded in the forward pass, and gradients passed straight through.

A second block, "transformer", is a looped Transformer block of width 32 with an adapter (pre-norm, fused attention,
relative positions by a learned bias) on prefix sums of 12 bits, 12 evaluations, 1,000 steps.

Claims, written down before anything here was trained, and after a pilot with other seeds on the first block alone:

1. Rounded to 3 bits, the models without a penalty have fewer than 60% of strings right at the training depth, and the
   models with weight 0.3 at least 95%, at the training depth and at 16 times of it, for every seed.
2. At 8 bits, every model has what it has without rounding, to two points, at the training depth.
3. Quantization-aware tuning to 3 bits brings the models without a penalty to at least 95% at the training depth, but
   below 50% at 16 times of it: it repairs the answer and not the loop.
4. The gain ‖(I - J)⁻¹‖_F / sqrt(d), by which a settled loop multiplies what rounding changes in one evaluation, orders
   the models as their accuracy at 3 bits does: a rank correlation below -0.7 over all weights and seeds.
5. On the Transformer block, which settles by itself, the penalty brings less than ten points at 3 bits.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from steadeq import JacobianRegularizer

HERE = Path(__file__).parent
NUMBERS = HERE / "results" / "few_bits.json"
PAGE = HERE.parent / "docs" / "few-bits.md"
FIGURE = HERE.parent / "docs" / "stabilize" / "few-bits.png"
WEIGHTS, SEEDS, BITS, FACTORS = (0.0, 0.1, 0.3, 1.0), (3, 4, 5), (8, 6, 5, 4, 3), (1, 2, 4, 16)
TUNED_BITS, NUM_TUNING_STEPS = (4, 3), 150
DEPTH = 12


def load_example() -> Any:
    """Import the example whose block and task are used."""
    path = HERE.parent / "examples" / "06_stabilize_a_loop.py"
    spec = importlib.util.spec_from_file_location("stabilize_a_loop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()


class TransformerBlock(nn.Module):
    """A modern Transformer block behind an adapter, for states of shape (B, width, tokens)."""

    def __init__(self, width: int = example.WIDTH, num_heads: int = 4, max_length: int = 64) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.adapter = nn.Linear(2 * width, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate_up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.distances = nn.Parameter(torch.zeros(num_heads, 2 * max_length - 1))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        h = self.adapter(torch.cat([z, x], dim=1).mT)
        length = h.shape[1]
        index = torch.arange(length)[:, None] - torch.arange(length) + self.distances.shape[1] // 2
        q, k, v = (p.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for p in self.qkv(self.norms[0](h)).chunk(3, 2))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.distances[:, index])
        h = h + self.out(heads.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](h)).chunk(2, dim=2)
        return (h + self.down(nn.functional.silu(gate) * up)).mT


class Rounded(nn.Module):
    """Rounds a weight to so many bits for each output channel; gradients pass straight through."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, weight: Tensor) -> Tensor:
        largest = weight.detach().flatten(1).abs().amax(dim=1).reshape(-1, *(weight.dim() - 1) * [1])
        step = largest.clamp(min=1e-12) / (2 ** (self.bits - 1) - 1)
        return weight + (torch.round(weight / step) * step - weight).detach()


@contextmanager
def rounded(model: nn.Module, bits: int | None) -> Iterator[nn.Module]:
    """Have all layers of a model compute with rounded weights."""
    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv1d))] if bits else []
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", Rounded(bits or 0))
    yield model
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def accuracies(model: nn.Module, num_bits: int) -> dict[str, float]:
    """Return the share of 256 strings that are right, after each number of evaluations."""
    torch.manual_seed(1234)
    scores = example.accuracy(model, num_bits=num_bits, depths=[DEPTH * factor for factor in FACTORS], count=256)
    return {str(depth // DEPTH): score for depth, score in scores.items()}


def gain(model: nn.Module, num_bits: int, num_samples: int = 4) -> dict[str, float]:
    """Return the mean gain and spectral radius of the exact Jacobian at the state after 12 evaluations."""
    torch.manual_seed(99)
    bits, _ = example.draw_strings(num_samples, num_bits)
    with torch.no_grad():
        x = model.encoder(bits)
        z = torch.zeros_like(x)
        for _ in range(DEPTH):
            z = model.block(z, x)
    gains, radii = [], []
    for one, given in zip(z.split(1), x.split(1), strict=True):
        J = torch.autograd.functional.jacobian(lambda z, given=given: model.block(z, given), one)
        J = J.reshape(one.numel(), one.numel()).double()
        gains.append(torch.linalg.inv(torch.eye(len(J)) - J).square().sum().div(len(J)).sqrt().item())
        radii.append(torch.linalg.eigvals(J).abs().max().item())
    return {"gain": mean(gains), "radius": mean(radii)}


def tune(model: nn.Module, bits: int, num_bits: int, seed: int) -> None:
    """Train on, in place, with weights rounded in the forward pass."""
    torch.manual_seed(1000 + seed)
    with rounded(model, bits):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(NUM_TUNING_STEPS):
            strings, parities = example.draw_strings(64, num_bits)
            x = model.encoder(strings)
            z, loss = torch.zeros_like(x), torch.zeros(())
            for _ in range(DEPTH // example.LOOPS):
                z = z.detach()
                for _ in range(example.LOOPS):
                    z = model.block(z, x)
                loss = loss + nn.functional.cross_entropy(model.head(z), parities) / 3
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def run(name: str) -> dict[str, Any]:
    """Train one model, round it, and measure it; a name is weight/seed, or transformer/weight/seed."""
    *kind, weight, seed = name.split("/")
    is_transformer = kind == ["transformer"]
    num_bits = 12 if is_transformer else 16
    start = time.process_time()
    model = example.train(
        JacobianRegularizer(weight=float(weight), estimator="difference"),
        seed=int(seed),
        num_steps=1000 if is_transformer else 600,
        num_bits=num_bits,
        num_segments=lambda step: DEPTH // example.LOOPS,
        block=TransformerBlock if is_transformer else example.Block,
    )
    result: dict[str, Any] = {"seconds": time.process_time() - start, **gain(model, num_bits)}
    for bits in (None, *BITS):
        with rounded(model, bits):
            result[f"{bits or 32} bits"] = accuracies(model, num_bits)
    if float(weight) == 0 and not is_transformer:
        before = {key: value.clone() for key, value in model.state_dict().items()}
        for bits in TUNED_BITS:
            model.load_state_dict(before)
            tune(model, bits, num_bits, int(seed))
            with rounded(model, bits):
                result[f"tuned to {bits} bits"] = accuracies(model, num_bits)
    return result


def names() -> list[str]:
    """List all runs; seeds first, so that those of one seed can be compared early."""
    plain = [f"{weight}/{seed}" for seed in SEEDS for weight in WEIGHTS]
    return plain + [f"transformer/{weight}/{seed}" for seed in SEEDS for weight in (0.0, 0.1)]


def read() -> dict[str, Any]:
    """Return what was measured."""
    return json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Return Spearman's rank correlation, with equal values sharing their mean rank."""

    def ranks(values: list[float]) -> Tensor:
        found = [(sum(v < value for v in values) + sum(v <= value for v in values) - 1) / 2 for value in values]
        return torch.tensor(found, dtype=torch.float64)

    return torch.corrcoef(torch.stack([ranks(a), ranks(b)]))[0, 1].item()


def claims(numbers: dict[str, Any]) -> dict[str, bool | None]:
    """Return whether each claim of the docstring holds; None where nothing was measured."""
    plain = {name: run for name, run in numbers.items() if not name.startswith("transformer")}
    by_weight = {weight: [run for name, run in plain.items() if name.startswith(f"{weight}/")] for weight in WEIGHTS}
    none, some = by_weight[0.0], by_weight[0.3]
    ours = [numbers.get(f"transformer/{weight}/{SEEDS[0]}") for weight in (0.0, 0.1)]
    gained = None if None in ours else ours[1]["3 bits"]["1"] - ours[0]["3 bits"]["1"]  # type: ignore[index]
    return {
        "Rounded to 3 bits, models without a penalty are below 60% at the training depth, and those with weight 0.3 at "
        "95% or more, there and at 16 times the depth.": all(run["3 bits"]["1"] < 0.6 for run in none)
        and all(run["3 bits"][factor] >= 0.95 for run in some for factor in ("1", "16")),
        "8 bits cost nobody more than two points at the training depth.": all(
            abs(run["8 bits"]["1"] - run["32 bits"]["1"]) <= 0.02 for run in plain.values()
        ),
        "Tuning to 3 bits repairs the answer (95% or more at the training depth) and not the loop (below 50% at 16 "
        "times).": all(run["tuned to 3 bits"]["1"] >= 0.95 and run["tuned to 3 bits"]["16"] < 0.5 for run in none),
        "The gain orders the models as their accuracy at 3 bits does (rank correlation below -0.7).": rank_correlation(
            [run["gain"] for run in plain.values()], [run["3 bits"]["1"] for run in plain.values()]
        )
        < -0.7,
        "On a Transformer block that settles by itself, the penalty brings less than ten points at 3 bits.": None
        if gained is None
        else gained < 0.1,
    }


def _percent(values: list[float]) -> str:
    low, high = (f"{value:.0%}" for value in (min(values), max(values)))
    return low if low == high else f"{mean(values):.0%} ({low.rstrip('%')} to {high.rstrip('%')})"


def fill(page: str, numbers: dict[str, Any]) -> str:
    """Return the page with its numbers as they must be."""
    columns = (("32 bits", "1"), ("5 bits", "1"), ("4 bits", "1"), ("3 bits", "1"), ("3 bits", "16"))
    rows = [["", *(bits if factor == "1" else f"{bits}, {factor} x" for bits, factor in columns), "gain", "radius"]]

    def row(title: str, prefix: str, cells: list[tuple[str, str]]) -> None:
        runs = [run for name, run in numbers.items() if name.startswith(prefix)]
        if runs:
            known = [_percent([run[bits][factor] for run in runs]) if bits else "" for bits, factor in cells]
            spread = [
                f"{min(r[key] for r in runs):.2g} to {max(r[key] for r in runs):.2g}" for key in ("gain", "radius")
            ]
            rows.append([title, *known, *(spread if "" not in known else ["", ""])])

    for weight in WEIGHTS:
        row(f"weight {weight:g}", f"{weight}/", list(columns))
    tuned = [("", ""), ("", ""), ("tuned to 4 bits", "1"), ("tuned to 3 bits", "1"), ("tuned to 3 bits", "16")]
    row("weight 0, then tuned", "0.0/", tuned)
    for weight in (0.0, 0.1):
        row(f"Transformer, weight {weight:g}", f"transformer/{weight}/", list(columns))
    verdicts = {True: "Holds", False: "Does not hold", None: "Not measured"}
    blocks = {
        "table": "\n".join("|" + "|".join(row) + "|" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]),
        "claims": "\n".join(f"* {verdicts[is_true]}: {claim}" for claim, is_true in claims(numbers).items()),
    }
    for name, block in blocks.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda m, block=block: f"{m[1]}\n{block}\n\n{m[2]}", page, flags=re.DOTALL)
    return page


def draw(numbers: dict[str, Any]) -> None:
    """Draw accuracy against bits, at the training depth and at 16 times of it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    for number, factor in enumerate(("1", "16")):
        axes = figure.add_subplot(1, 2, number + 1, title=f"{factor} x the training depth", xlabel="bits of a weight")
        for color, weight in enumerate(WEIGHTS):
            runs = [run for name, run in numbers.items() if name.startswith(f"{weight}/")]
            lines = [[100 * run[f"{bits} bits"][factor] for bits in BITS] for run in runs]
            for line in lines:
                axes.plot(BITS, line, color=f"C{color}", linewidth=0.6, alpha=0.5)
            middle = [mean(values) for values in zip(*lines, strict=True)]
            axes.plot(BITS, middle, "o-", color=f"C{color}", label=f"weight {weight:g}")
        axes.invert_xaxis()
        axes.set_ylim(-3, 103)
        axes.grid(alpha=0.3)
        if not number:
            axes.set_ylabel("strings fully right, %")
            axes.legend()
    figure.savefig(FIGURE, dpi=110, metadata={"Software": None})


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description="Round the weights of loops that settle, and of loops that do not.")
    parser.add_argument("--run", nargs="+", metavar="NAME", help="runs to make, or all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.run:
        for name in names() if options.run == ["all"] else options.run:
            if name not in read():
                result = run(name)
                text = json.dumps({**read(), name: result}, indent=1, sort_keys=True)
                NUMBERS.write_text(text + "\n", encoding="utf-8")
                print(name, json.dumps(result), flush=True)
    else:
        draw(read())
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")


if __name__ == "__main__":
    main()
