"""Does a loop that settles stand fewer bits? Weights are rounded after training, with and without the penalty.

    python benchmarks/few_bits.py --run 0.3/4        train and measure one model: weight of the penalty / seed
    python benchmarks/few_bits.py --run all          those that results/few_bits.json lacks (ten minutes on one core)
    python benchmarks/few_bits.py --trained RUN ...  round the cell of trained runs, and measure them on their test data
    python benchmarks/few_bits.py --kernels          time and size of the Transformer block with integer kernels
    python benchmarks/few_bits.py                    draw the figure of docs/few-bits.md and fill the page in

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

Written down later, before it was measured, about the DEQ Transformers of WikiText-2 at the scale `day` (seed 0, with
and without the penalty, each at its own budget):

6. At 4 bits, the perplexity of the model with the penalty grows by a smaller factor than that of the model without.
"""

from __future__ import annotations

import argparse
import importlib
import io
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import kept
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from steadeq import JacobianRegularizer
from steadeq.diagnosis._questions import rounded_weights
from steadeq.lab.run.loading import load_trained
from steadeq.lab.train.distributed import Process
from steadeq.lab.train.evaluation import sweep_budgets

HERE = Path(__file__).parent
NUMBERS = HERE / "results" / "few_bits.json"
PAGE = HERE.parent / "docs" / "few-bits.md"
FIGURE = HERE.parent / "docs" / "few-bits" / "accuracy.png"
WEIGHTS, SEEDS, BITS, FACTORS = (0.0, 0.1, 0.3, 1.0), (3, 4, 5), (8, 6, 5, 4, 3), (1, 2, 4, 16)
TUNED_BITS, NUM_TUNING_STEPS = (4, 3), 150
DEPTH = 12


sys.path.insert(0, str(HERE.parent / "examples"))
example: Any = importlib.import_module("06_stabilize_a_loop")


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


def accuracies(model: Any, num_bits: int) -> dict[str, float]:
    """Return the share of 128 strings that are right, after each number of evaluations."""
    torch.manual_seed(1234)
    scores = example.accuracy(model, num_bits=num_bits, depths=[DEPTH * factor for factor in FACTORS], count=128)
    return {str(depth // DEPTH): score for depth, score in scores.items()}


def gain(model: Any, num_bits: int, num_samples: int = 2) -> dict[str, float]:
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


def tune(model: Any, bits: int, num_bits: int, seed: int) -> None:
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


def run_trained(path: Path) -> dict[str, Any]:
    """Measure a trained run with the weights of its cell rounded, at its own budget and beyond."""
    trained = load_trained(path)
    budget, cell = trained.config.evaluation_solver.max_evals, trained.model.get_submodule("cell")
    result: dict[str, Any] = {"budget": budget}
    for bits in (None, *BITS):
        with rounded_weights([cell], bits) if bits else nullcontext():
            found = sweep_budgets(trained, Process.alone(), budgets=[budget, 2 * budget])
        result[f"{bits or 32} bits"] = {str(row.max_evals // budget): row.score for row in found.rows}
    return result


def run_kernels(num_rounds: int = 30) -> dict[str, Any]:
    """Compare the Transformer block, wide enough for it to matter, with its linear layers as integer kernels."""
    torch.manual_seed(0)
    block = TransformerBlock(width=256).eval()
    whole = torch.ao.quantization.quantize_dynamic(block, {nn.Linear}, dtype=torch.qint8)
    z, x = torch.randn(2, 8, 256, 64).unbind()
    seconds: dict[str, list[float]] = {"float32": [], "int8": []}
    with torch.no_grad():
        difference = (whole(z, x) - block(z, x)).norm() / block(z, x).norm()
        for _ in range(num_rounds):
            for name, one in (("float32", block), ("int8", whole)):
                began = time.perf_counter()
                one(z, x)
                seconds[name].append(time.perf_counter() - began)
    sizes = {}
    for name, one in (("float32", block), ("int8", whole)):
        buffer = io.BytesIO()
        torch.save(one.state_dict(), buffer)
        sizes[name] = buffer.tell()
    return {
        "time": median(seconds["int8"]) / median(seconds["float32"]),
        "size": sizes["int8"] / sizes["float32"],
        "difference": difference.item(),
    }


# The page


def claims(numbers: dict[str, Any]) -> list[tuple[str, bool | None]]:
    """Return what was claimed, and whether it is so; None where numbers are missing."""

    def right(name: str, bits: int | str, factor: int = 1) -> list[float]:
        key = f"{bits} bits" if isinstance(bits, int) else bits
        return [numbers[f"{name}/{seed}"][key][str(factor)] for seed in SEEDS]

    every = [numbers[f"{weight}/{seed}"] for weight in WEIGHTS for seed in SEEDS]
    pairs = [(one["gain"], one["3 bits"]["1"]) for one in every]
    before, after = (numbers.get(f"wikitext2-deq-post{part}-day-seed0") for part in ("", "-jr"))

    def growth(one: dict[str, Any]) -> float:
        return one["4 bits"]["1"] / one["32 bits"]["1"]

    return [
        (
            "At 3 bits, fewer than 60% of strings are right at the training depth without the penalty; with it at 0.3, "
            "at least 95% are, also at 16 times the depth.",
            max(right("0.0", 3)) < 0.6 and min(right("0.3", 3) + right("0.3", 3, 16)) >= 0.95,
        ),
        (
            "At 8 bits, nobody loses more than two points at the training depth.",
            all(abs(one["8 bits"]["1"] - one["32 bits"]["1"]) <= 0.02 for one in every),
        ),
        (
            "Quantization-aware tuning to 3 bits reaches 95% at the training depth, and less than 50% at 16 times it.",
            min(right("0.0", "tuned to 3 bits")) >= 0.95 and max(right("0.0", "tuned to 3 bits", 16)) < 0.5,
        ),
        ("The gain orders the models as 3 bits do: a rank correlation below -0.7.", rank_correlation(pairs) < -0.7),
        (
            "On the Transformer block, the penalty brings less than ten points at 3 bits.",
            mean(right("transformer/0.1", 3)) - mean(right("transformer/0.0", 3)) < 0.1,
        ),
        (
            "On WikiText-2, 4 bits make perplexity grow by a smaller factor with the penalty than without it.",
            None if before is None or after is None else growth(after) < growth(before),
        ),
    ]


def rank_correlation(pairs: list[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties."""
    ranks = []
    for values in zip(*pairs, strict=True):
        array = torch.tensor(values, dtype=torch.float64)
        ranks.append(((array[:, None] > array).sum(dim=1) + (array[:, None] >= array).sum(dim=1)).double())
    return torch.corrcoef(torch.stack(ranks))[0, 1].item()


def _table(rows: list[list[str]]) -> str:
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _percent(values: list[float]) -> str:
    low, high = (f"{100 * bound:.0f}" for bound in (min(values), max(values)))
    return low if low == high else f"{100 * mean(values):.0f} ({low} to {high})"


def fill(page: str, numbers: dict[str, Any]) -> str:
    """Return the page with its numbers as they must be."""
    kinds = {f"weight {weight:g}": f"{weight}" for weight in WEIGHTS}
    kinds |= {f"Transformer, weight {weight:g}": f"transformer/{weight}" for weight in (0.0, 0.1)}
    rows = [["% right at 1 x, 16 x", "32 bits", *(f"{bits} bits" for bits in (8, 4, 3)), "gain"]]
    for label, name in kinds.items():
        runs = [numbers[f"{name}/{seed}"] for seed in SEEDS]
        cells = [
            ", ".join(_percent([run[f"{bits} bits"][factor] for run in runs]) for factor in ("1", "16"))
            for bits in (32, 8, 4, 3)
        ]
        rows.append([label, *cells, f"{median(run['gain'] for run in runs):.2g}"])
    runs = [numbers[f"0.0/{seed}"] for seed in SEEDS]
    tuned = [
        ", ".join(_percent([run[f"tuned to {bits} bits"][factor] for run in runs]) for factor in ("1", "16"))
        for bits in TUNED_BITS
    ]
    rows.append(["weight 0, tuned at that many bits", "", "", *tuned, ""])
    texts = [["perplexity at 1 x, 2 x", "32 bits", *(f"{bits} bits" for bits in BITS)]]
    for name in sorted(key for key in numbers if key.startswith("wikitext2")):
        shown = [", ".join(f"{value:.1f}" for value in numbers[name][f"{bits} bits"].values()) for bits in (32, *BITS)]
        texts.append([f"`{name.removesuffix('-seed0')}`", *shown])
    kernels = numbers["kernels"]
    blocks = {
        "table": _table(rows),
        "text": _table(texts) if texts[1:] else "Not measured yet.",
        "kernels": f"{kernels['size']:.2f} of the size and {kernels['time']:.2f} of the time, with states that differ "
        f"by {100 * kernels['difference']:.1f}%",
        "claims": "\n".join(
            f"- {'Not tested' if holds is None else 'Holds' if holds else 'Does not hold'}: {claim}"
            for claim, holds in claims(numbers)
        ),
    }
    for name, block in blocks.items():
        text = f" {block} " if name == "kernels" else f"\n\n{block}\n\n"
        page, count = re.subn(
            rf"(<!-- {name} -->).*?(<!-- /{name} -->)", lambda m, t=text: m[1] + t + m[2], page, flags=re.DOTALL
        )
        assert count == 1, name
    return page


def draw(numbers: dict[str, Any]) -> None:
    """Draw accuracy against bits, at the training depth and at 16 times it, with and without the penalty."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.0), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    places = (8, 6, 5, 4, 3)
    for axes, factor in zip(panels, ("1", "16"), strict=True):
        for weight, color in ((0.0, "#2a78d6"), (0.3, "#d1620f")):
            curves = [[numbers[f"{weight}/{seed}"][f"{bits} bits"][factor] for bits in places] for seed in SEEDS]
            for curve in curves:
                axes.plot(places, curve, color=color, linewidth=0.8, alpha=0.4)
            label = "with the penalty" if weight else "without the penalty"
            means = [mean(values) for values in zip(*curves, strict=True)]
            axes.plot(places, means, color=color, linewidth=2, marker="o", markersize=3.5, label=label)
        axes.set_title(
            "at the training depth" if factor == "1" else f"at {factor} times the training depth", fontsize=10
        )
        axes.set_xlabel("bits per weight")
        axes.set_xticks(places)
        axes.invert_xaxis()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.15)
    panels[0].set_ylabel("strings fully right")
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panels[0].legend(frameon=False, loc="lower left")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130, metadata={"Software": None})


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description="Round the weights of loops that settle, and of loops that do not.")
    parser.add_argument("--run", nargs="+", metavar="NAME", help="runs to make, or all")
    parser.add_argument("--trained", nargs="+", type=Path, metavar="RUN", help="trained runs to round")
    parser.add_argument("--kernels", action="store_true", help="measure integer kernels")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def read() -> dict[str, Any]:
        return kept.read(NUMBERS) if NUMBERS.exists() else {}

    measured: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in names() if options.run == ["all"] else options.run or ():
        measured[name] = partial(run, name)
    for path in options.trained or ():
        measured[path.name] = partial(run_trained, path)
    if options.kernels:
        measured["kernels"] = run_kernels
    for name, measure in measured.items():
        if name not in read():
            result = measure()
            kept.write(NUMBERS, dict(sorted({**read(), name: result}.items())))
            print(name, result, flush=True)
    if not measured:
        draw(read())
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")


if __name__ == "__main__":
    main()
