"""Section 5.5: a convolutional cell needs as many evaluations as it takes to see the whole image."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from ..adjoints import Implicit
from ..equilibrium import Equilibrium
from ..jacobian import jacobian_penalty
from ..lab.recipes.registry import Scale
from ..lab.report.style import GRAY, HEIGHT, WIDTH, line_style, styled, use_log_scale
from ..lab.seeds import derive_generator, derive_seed
from ..models import AbstractEquilibriumModel
from ..nn import DEQ
from ..solvers import GMRES, Anderson, Picard
from .comparison import save_figures
from .result import Claim, PaperResult, Source, write_csv
from .study import fit, mean_evals, measure_radius, over_seeds
from .tables import Column, markdown_table
from .variant import SEEDS, Averages

SIZES = (8, 16, 32, 64)
"""Width and height of the images."""
GAMMA, LARGE_GAMMA, LARGE_AT = 0.1, 10.0, 32
"""Weight of the penalty at all sizes, and another one that is tried at one of them."""
REACH = 2
"""How many pixels to each side the cell sees: two convolutions of 3 by 3, a receptive field of 5 by 5."""
CHANNELS, NOISE = 8, 0.3
NUM_STEPS, BATCH_SIZE, LEARNING_RATE, MAX_EVALS = 150, 8, 1e-2, 100
BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
FEW = 6
"""The paper's number of evaluations on CIFAR-10."""
_LIMIT = 300
_PLAIN = Column(title="evaluations, plain iteration", measure="picard_evals", digits=".1f")
_ANDERSON = Column(title="evaluations, Anderson", measure="anderson_evals", digits=".1f")
_FINAL = Column(title="accuracy, %", measure="accuracy", factor=100, digits=".1f")
_EARLY = Column(title=f"accuracy at {FEW}, %", measure=f"accuracy_{FEW}", factor=100, digits=".1f")
_ENOUGH = Column(title="evaluations to that accuracy", measure="enough_evals", digits=".1f")
_RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2f")


class PixelCell(nn.Module):
    """Two convolutions, f(z; x) = tanh(conv(tanh(conv(z))) + x).

    There is no normalization, which would tell every pixel about all others at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Map a state and the encoded image, both (B, CHANNELS, H, W), to a new state."""
        return torch.tanh(self.conv2(torch.tanh(self.conv1(z))) + x)


class PixelDEQ(AbstractEquilibriumModel):
    """Labels every pixel of an image by the equilibrium of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.injection = nn.Conv2d(1, CHANNELS, 1, bias=False)
        solver = Picard(max_evals=MAX_EVALS, tol=1e-3)
        self.layer = DEQ(PixelCell(), solver=solver, adjoint=Implicit(GMRES(max_evals=60, tol=1e-3)))
        self.head = nn.Conv2d(CHANNELS, 2, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """Return zeros as the start, and each pixel after a linear map as the input of the cell."""
        injected = self.injection(x)
        return torch.zeros_like(injected), (injected,)

    def decode(self, z: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        return self.head(z)


def draw_images(num_images: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy images whose first row is bright or dark, and labels of all pixels: which of the two it is.

    Args:
        num_images: How many.
        size: Width and height.
        generator: Source of randomness.

    Returns:
        (B, 1, size, size) images, and (B, size, size) labels.
    """
    kinds = torch.randint(2, (num_images,), generator=generator)
    images = NOISE * torch.randn(num_images, 1, size, size, generator=generator)
    images[:, :, 0] += (2.0 * kinds - 1)[:, None, None]
    return images, kinds[:, None, None].expand(-1, size, size).clone()


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A size of images, and a weight of the penalty."""

    size: int
    gamma: float = GAMMA


ARMS = (*(Arm(size=size) for size in SIZES), Arm(size=LARGE_AT, gamma=LARGE_GAMMA))


def train(arm: Arm, seed: int, *, num_steps: int = NUM_STEPS) -> PixelDEQ:
    """Return a trained model; all sizes start from the same weights and have the same number of steps."""
    torch.manual_seed(derive_seed(seed, "initialization"))
    model = PixelDEQ()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def loss(step: int) -> Tensor:
        generator = derive_generator(seed, "images", step)
        x, y = draw_images(BATCH_SIZE, arm.size, generator)
        output, eq = model.solve(x)
        return F.cross_entropy(output, y) + arm.gamma * jacobian_penalty(eq, generator=generator)

    def rate(step: int) -> float:
        return LEARNING_RATE * (1 + math.cos(math.pi * step / num_steps)) / 2

    fit(model, optimizer, loss, rate=rate, num_steps=num_steps, max_grad_norm=1.0)
    return model


@torch.no_grad()
def measure(model: PixelDEQ, arm: Arm) -> dict[str, float | None]:
    """Return what is compared, on images that were not trained on.

    Evaluations are counted until the residual is 0.001; `accuracy_6` is the accuracy after 6 steps of plain
    iteration, and `enough_evals` the least such number that comes within a point of the accuracy at the largest.
    """
    x, y = draw_images(16, arm.size, torch.Generator().manual_seed(arm.size))

    accuracies = {}
    z, inputs = model.encode(x)
    for number in range(1, BUDGETS[-1] + 1):
        z = model.layer.cell(z, *inputs)
        if number in BUDGETS:
            accuracies[number] = float((model.decode(z).argmax(dim=1) == y).double().mean())
    best = accuracies[BUDGETS[-1]]
    some = Equilibrium.at(model.layer.cell, z[:8], *(tensor[:8] for tensor in inputs))
    generator = torch.Generator().manual_seed(0)
    return {
        "picard_evals": mean_evals(model, x, Picard(max_evals=_LIMIT, tol=1e-3)),
        "anderson_evals": mean_evals(model, x, Anderson(max_evals=_LIMIT, tol=1e-3)),
        "accuracy": best,
        "enough_evals": float(next(budget for budget in BUDGETS if accuracies[budget] >= best - 0.01)),
        **measure_radius(some, generator),
        "jacobian_norm": float(jacobian_penalty(some, num_probes=8, generator=generator)),
        **{f"accuracy_{budget}": value for budget, value in accuracies.items()},
    }


def changes(model: PixelDEQ, size: int, num_evals: int) -> Iterator[Tensor]:
    """Yield how much each pixel of the state has changed, as the middle pixel of an empty image lights up.

    Args:
        model: The model.
        size: Width and height of the image.
        num_evals: Number of evaluations of plain iteration; after each of them a (size, size) tensor is yielded.
    """
    pair = torch.zeros(2, 1, size, size, dtype=next(model.parameters()).dtype)
    pair[1, 0, size // 2, size // 2] = 1.0
    with torch.no_grad():
        z, inputs = model.encode(pair)
        for _ in range(num_evals):
            z = model.layer.cell(z, *inputs)
            yield torch.linalg.vector_norm(z[1] - z[0], dim=0)


def spread(model: PixelDEQ, size: int, num_evals: int) -> list[int]:
    """Return how far from a changed pixel the state has changed after 1, 2, 3 ... evaluations of plain iteration."""
    offsets = (torch.arange(size) - size // 2).abs()
    distances = torch.maximum(offsets[:, None], offsets[None])
    return [int(distances[change > 0].max()) for change in changes(model, size, num_evals)]


@dataclass(frozen=True, kw_only=True)
class ArmSummary(Averages, Arm):
    """What is known of an arm over its seeds."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How far a pixel is seen after each evaluation, and the trained models."""

    distances: Sequence[int]
    """What `spread` returned for a cell that was not trained."""
    arms: Sequence[ArmSummary]

    @property
    def sizes(self) -> list[ArmSummary]:
        """The arms that differ in their size alone."""
        return [arm for arm in self.arms if arm.gamma == GAMMA]

    def with_gamma(self, gamma: float) -> ArmSummary:
        """Return the arm of a gamma, at the size at which two were tried."""
        return next(arm for arm in self.arms if (arm.size, arm.gamma) == (LARGE_AT, gamma))


def draw_accuracies(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Show accuracy against the number of evaluations, by size, and evaluations to a residual against size.

    Args:
        rows: What was measured of each arm with each seed, each of which is drawn.
    """
    with styled():
        figure = Figure(figsize=(2 * WIDTH, HEIGHT + 0.6))
        left, right = figure.subplots(1, 2)
        sizes = [row for row in rows if row["gamma"] == GAMMA]
        for row in sizes:
            index = SIZES.index(row["size"])
            label = f"{row['size']} × {row['size']}" if row["seed"] == SEEDS[0] else None
            values = [100 * row[f"accuracy_{budget}"] for budget in BUDGETS]
            left.plot(BUDGETS, values, label=label, **{**line_style(index), "linewidth": 1.2})
        left.set_xscale("log", base=2)
        ticks = (1, 2, 4, 8, 16, 32, 64, 128)
        left.set(xlabel="evaluations of plain iteration", ylabel="accuracy of pixels, %")
        left.set(xticks=ticks, xticklabels=ticks)
        left.legend(loc="upper left", title="each seed of")
        has_learned = [row for row in sizes if row["accuracy"] > 0.99]
        for index, column in enumerate((_PLAIN, _ANDERSON)):
            color, name = line_style(index)["color"], column.title.split(", ")[1]
            for chosen, face, label in ((has_learned, color, name), (sizes, "none", None)):
                points = [(row["size"], row[column.measure]) for row in chosen]
                if points:
                    right.scatter(*zip(*points, strict=True), s=28, color=color, facecolors=face, label=label)
        right.scatter([], [], s=28, color=GRAY, facecolors="none", label="has not learned the task")
        right.plot(SIZES, [1 + size / REACH for size in SIZES], label="to see from edge to edge", **line_style(2))
        right.set_xscale("log", base=2)
        right.set(xlabel="width of the image", xticks=SIZES, xticklabels=SIZES)
        right.set_ylabel("evaluations to a residual of 0.001")
        use_log_scale(right)
        right.legend(loc="upper left")
    return figure


def draw_spread(model: PixelDEQ, size: int = 64, numbers: Sequence[int] = (2, 4, 8, 16)) -> Figure:
    """Show how much each pixel of the state has changed after some evaluations, as one pixel of the image changes."""
    colors = ScalarMappable(LogNorm(1e-6, 1, clip=True), cmap="viridis")
    with styled():
        figure = Figure(figsize=(2 * WIDTH, HEIGHT - 0.4))
        panels = figure.subplots(1, len(numbers))
        found = dict(enumerate(changes(model, size, max(numbers)), start=1))
        for axes, number in zip(panels, numbers, strict=True):
            axes.imshow(found[number], norm=colors.norm, cmap=colors.cmap)
            axes.set(title=f"{number} evaluations", xticks=(), yticks=())
            axes.grid(visible=False)
        bar = figure.colorbar(colors, ax=list(panels), shrink=0.8)
        bar.set_ticks((1e-6, 1e-4, 1e-2, 1), labels=("10⁻⁶", "10⁻⁴", "10⁻²", "1"))
        bar.ax.minorticks_off()
        bar.set_label("change of the state")
    return figure


@dataclass(frozen=True, kw_only=True)
class _ReceptiveField(PaperResult[Summary]):
    summary_type = Summary
    rows_key = "arms"

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        models = {(arm, seed): train(arm, seed) for arm in ARMS for seed in SEEDS}
        arms, rows = over_seeds(ArmSummary, ARMS, lambda arm, seed: measure(models[arm, seed], arm))
        write_csv(folder / "runs.csv", rows)
        torch.manual_seed(0)
        summary = Summary(distances=spread(PixelDEQ().double(), 128, 24), arms=arms)
        best = max((row for row in rows if row["size"] == SIZES[-1]), key=lambda row: row["accuracy"])
        drawn = draw_spread(models[Arm(size=SIZES[-1]), best["seed"]])
        save_figures({"accuracy_by_size": draw_accuracies(rows), "spread": drawn}, folder)
        return summary

    def table(self, summary: Summary) -> str:
        columns = (_PLAIN, _ANDERSON, _FINAL, _EARLY, _ENOUGH)
        rows = [[f"{arm.size}", f"{arm.gamma:g}", *(column.show(arm) for column in columns)] for arm in summary.arms]
        titles = ("plain iteration", "Anderson", _FINAL.title, _EARLY.title, "evaluations to that accuracy")
        return markdown_table(["width", "γ", *titles], rows)


def _listed(arms: Sequence[ArmSummary], *columns: Column) -> str:
    sizes = ", ".join(str(arm.size) for arm in arms)
    return f"width {sizes}: " + "; ".join(f"{c.title} {', '.join(map(c.show, arms))}" for c in columns)


def _grows(text: str, *columns: Column, source: Source = "paper") -> Claim[Summary]:
    """Return a claim that measures grow with every doubling of the image."""

    def holds(summary: Summary) -> bool:
        return all(
            small.mean(c.measure) < large.mean(c.measure) for c in columns for small, large in pairwise(summary.sizes)
        )

    return Claim(text, section="5.5", source=source, holds=holds, evidence=lambda s: _listed(s.sizes, *columns))


def _of_largest(holds: Callable[[ArmSummary, ArmSummary], bool]) -> Callable[[Summary], bool]:
    return lambda s: holds(s.sizes[0], s.sizes[-1])


RECEPTIVE_FIELD = _ReceptiveField(
    name="receptive-field",
    title="Receptive field (section 5.5)",
    statement="a convolutional cell cannot converge in a few evaluations on a large image, whatever the penalty, as it "
    "has not seen the image by then",
    scales=("cpu",),
    needs="made up",
    takes="10 min",
    claims=(
        Claim(
            f"the state sees {REACH} more pixels to each side with each evaluation after the first, and no more",
            section="5.5",
            holds=lambda s: list(s.distances) == [REACH * n for n in range(len(s.distances))],
            evidence=lambda s: f"pixels, after each evaluation: {', '.join(map(str, s.distances))}",
        ),
        _grows("with the same gamma, a larger image needs more evaluations to the same residual", _PLAIN, _ANDERSON),
        Claim(
            f"{FEW} evaluations do not suffice on a large image: they cost more accuracy at the largest size than at "
            "the smallest, by 5 points or more",
            section="5.5",
            threshold="set after a look at numbers",
            holds=_of_largest(lambda a, b: _lost(b) - _lost(a) >= 0.05),
            evidence=lambda s: _listed(s.sizes, _EARLY, _FINAL),
        ),
        _grows("a larger image needs more evaluations until it is about as accurate as it gets", _ENOUGH, source="own"),
        Claim(
            f"a large gamma forces convergence, and costs accuracy ({LARGE_GAMMA:g} instead of {GAMMA:g})",
            section="5.5",
            holds=lambda s: (
                s.with_gamma(LARGE_GAMMA).mean("picard_evals") < s.with_gamma(GAMMA).mean("picard_evals")
                and s.with_gamma(LARGE_GAMMA).mean("accuracy") < s.with_gamma(GAMMA).mean("accuracy")
            ),
            evidence=lambda s: "; ".join(
                f"{c.title} {c.against(s.with_gamma(LARGE_GAMMA), s.with_gamma(GAMMA))}"
                for c in (_PLAIN, _FINAL, _RADIUS)
            ),
        ),
    ),
)


def _lost(arm: ArmSummary) -> float:
    """Return the accuracy that few evaluations cost."""
    return arm.mean("accuracy") - arm.mean(f"accuracy_{FEW}")
