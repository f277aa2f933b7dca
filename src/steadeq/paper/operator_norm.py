"""Section 4.2: a penalty on the largest singular value of the Jacobian, beside the penalty on its Frobenius norm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..equilibrium import Equilibrium
from ..jacobian import (
    AbstractRegularizer,
    JacobianRegularizer,
    OperatorNormRegularizer,
    frobenius_norm,
    operator_norm,
)
from ..lab import recipes
from ..lab.config import TrainConfig
from ..lab.data import AbstractDataset
from ..lab.data.digits import Digits
from ..lab.recipes.registry import Scale
from ..lab.report.style import HEIGHT, WIDTH, add_legend, line_style, new_axes, styled
from ..lab.run.loading import load_trained
from ..lab.tasks import Classification
from ..models import ConvDEQ
from ..solvers import Anderson
from .comparison import save_figures
from .estimators import TrainingStep, cpu_seconds
from .result import Claim, PaperResult, write_csv
from .study import measure_radius
from .tables import Column, markdown_table
from .variant import SEEDS, Averages

NONE, FROBENIUS, SIGMA = "no penalty", "Frobenius norm", "largest singular value"
WEIGHTS: Mapping[str, Sequence[float]] = {
    NONE: (0.0,),
    FROBENIUS: (0.3, 1.0, 3.0, 10.0),
    SIGMA: (0.03, 0.1, 0.3, 1.0),
}
"""Weights that were tried: as many for both penalties, a tenth as large for the larger quantity."""
NUM_EPOCHS, MAX_EVALS, NUM_STEPS = 5, 6, 5
"""Length of training, evaluations of its solves, and steps of the power method."""
TOLERATED = 0.01
"""Validation accuracy that a weight may cost to be chosen."""
_LIMIT = 100
_ACCURACY = Column(title="accuracy, %", measure="accuracy", factor=100, digits=".1f")
_EVALS = Column(title="evaluations", measure="evals", digits=".1f")
_RADIUS = Column(title="ρ", measure="spectral_radius", digits=".2f")
_SIGMA = Column(title="σ", measure="operator_norm", digits=".2f")
_NORM = Column(title="‖J‖_F", measure="frobenius_norm", digits=".1f")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A penalty with its weight."""

    penalty: str
    weight: float = 0.0

    def regularizer(self) -> AbstractRegularizer:
        """Return the regularizer to train with."""
        if self.penalty == SIGMA:
            return OperatorNormRegularizer(weight=self.weight, probability=0.4, num_steps=NUM_STEPS)
        return JacobianRegularizer(weight=self.weight, probability=0.4)

    def configs(self) -> dict[int, tuple[str, TrainConfig]]:
        """Return the name and the config of the run of each seed."""
        base = recipes.get("digits").build().with_max_evals(MAX_EVALS)
        base = replace(
            base,
            # Narrower than the recipe's, to be quick.
            model=replace(base.model, channels=16, hidden=32),
            regularizer=self.regularizer(),
            loop=replace(base.loop, num_epochs=NUM_EPOCHS),
            # The Jacobian is measured at the end alone.
            log=replace(base.log, spectrum_samples=0),
        )
        name = f"digits-{self.penalty.replace(' ', '-').lower()}-{self.weight:g}"
        return {seed: (f"{name}-seed{seed}", replace(base, loop=replace(base.loop, seed=seed))) for seed in SEEDS}


ARMS = tuple(Arm(penalty=penalty, weight=weight) for penalty, weights in WEIGHTS.items() for weight in weights)


@torch.no_grad()
def measure(model: ConvDEQ) -> dict[str, float | None]:
    """Return what is compared of a trained model, on test data, or where the name says so on validation data.

    Accuracies are at the budget of training, evaluations are counted for Anderson until the residual is 0.001.
    """
    splits = Digits().load()
    assert isinstance(splits.validation, AbstractDataset)
    assert isinstance(splits.test, AbstractDataset)

    def solve(x: Tensor, y: Tensor) -> tuple[float, float, Equilibrium]:
        output = model(x, solver=Anderson(max_evals=MAX_EVALS, tol=1e-3))
        _, eq = model.solve(x, solver=Anderson(max_evals=_LIMIT, tol=1e-3))
        assert eq.stats is not None
        accuracy = float((output.argmax(dim=1) == y).double().mean())
        return accuracy, float(eq.stats.num_evals.double().mean()), eq

    validation_accuracy, validation_evals, _ = solve(*splits.validation.all())
    accuracy, evals, eq = solve(*splits.test.all())
    # A few samples tell enough of the Jacobian, which is expensive.
    some = Equilibrium.at(eq.f, eq.z[:16], *(tensor[:16] for tensor in eq.inputs))
    generator = torch.Generator().manual_seed(0)
    radius, sigma = measure_radius(some, generator), operator_norm(some, generator=generator)
    norm = frobenius_norm(some, num_probes=32, generator=generator)
    return {
        "validation_accuracy": validation_accuracy,
        "validation_evals": validation_evals,
        "accuracy": accuracy,
        "evals": evals,
        **radius,
        "operator_norm": float(sigma.value.mean()),
        "operator_norm_error": sigma.mean_error()[0],
        "frobenius_norm": float(norm.value.mean()),
        "frobenius_norm_error": norm.mean_error()[0],
    }


def time_steps(model: ConvDEQ) -> dict[str, float]:
    """Return the seconds of a training step with each penalty, applied at every step."""
    dataset = Digits().load().train
    assert isinstance(dataset, AbstractDataset)
    x, y = dataset.batch(torch.arange(57))
    step = TrainingStep(model=model, task=Classification(), x=x, y=y)
    arms = {NONE: Arm(penalty=NONE), FROBENIUS: Arm(penalty=FROBENIUS, weight=1.0), SIGMA: Arm(penalty=SIGMA, weight=1)}
    return cpu_seconds(
        {name: step.run(penalty=arm.regularizer().penalty if arm.weight else None) for name, arm in arms.items()}
    )


@dataclass(frozen=True, kw_only=True)
class ArmSummary(Averages, Arm):
    """What is known of an arm over its seeds."""

    is_chosen: bool


def choose(arms: Sequence[tuple[Arm, Averages]]) -> list[bool]:
    """Say of each arm whether it is the one of its penalty that is compared, by validation data alone.

    Of the weights that cost at most `TOLERATED` of the accuracy of the best of all arms, each penalty gets the one with
    the fewest evaluations; if there is none, the most accurate.
    """
    best = max(found.mean("validation_accuracy") for _, found in arms)

    def rank(found: Averages) -> tuple[float, ...]:
        lost = best - found.mean("validation_accuracy")
        return (0, found.mean("validation_evals")) if lost <= TOLERATED else (1, lost)

    least = {p: min(rank(found) for arm, found in arms if arm.penalty == p) for p in {arm.penalty for arm, _ in arms}}
    return [rank(found) == least[arm.penalty] for arm, found in arms]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The time of a step with each penalty, and the trained models."""

    step_seconds: Mapping[str, float]
    """By the name of the penalty."""
    arms: Sequence[ArmSummary]

    def chosen(self, penalty: str) -> ArmSummary:
        """Return the arm of a penalty that is compared."""
        return next(arm for arm in self.arms if arm.penalty == penalty and arm.is_chosen)

    def added(self, penalty: str) -> float:
        """Return the seconds that a penalty adds to a step, in steps without one."""
        return self.step_seconds[penalty] / self.step_seconds[NONE] - 1


def draw(summary: Summary) -> Figure:
    """Show accuracy against evaluations for all weights of both penalties."""
    with styled():
        figure, axes = new_axes("evaluations of Anderson to a residual of 0.001", "test accuracy, %")
        figure.set_size_inches(1.3 * WIDTH, 1.2 * HEIGHT)
        for index, penalty in enumerate(WEIGHTS):
            arms = [arm for arm in summary.arms if arm.penalty == penalty]
            evals, accuracies = ([arm.spreads[name] for arm in arms] for name in ("evals", "accuracy"))
            axes.errorbar(
                [spread.mean for spread in evals],
                [100 * spread.mean for spread in accuracies],
                xerr=[spread.std or 0 for spread in evals],
                yerr=[100 * (spread.std or 0) for spread in accuracies],
                **{
                    **line_style(index),
                    "marker": "o",
                    "markersize": 4,
                    "capsize": 2,
                    "elinewidth": 0.6,
                    "label": penalty,
                },
            )
            # On the side where the other penalty is not.
            offset, alignment = ((8, -12), "left") if penalty == FROBENIUS else ((-8, 6), "right")
            for arm in arms:
                if arm.weight:
                    axes.annotate(
                        f"{arm.weight:g}",
                        (arm.mean("evals"), 100 * arm.mean("accuracy")),
                        xytext=offset,
                        textcoords="offset points",
                        horizontalalignment=alignment,
                        color=line_style(index)["color"],
                        fontweight="bold" if arm.is_chosen else "normal",
                    )
        axes.set_xscale("log")
        ticks = (5, 10, 20, 50)
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axes.minorticks_off()
        handles, labels = axes.get_legend_handles_labels()
        add_legend(figure, dict(zip(labels, handles, strict=True)))
    return figure


@dataclass(frozen=True, kw_only=True)
class _OperatorNorm(PaperResult[Summary]):
    summary_type = Summary
    rows_key = "arms"

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        return dict(run for arm in ARMS for run in arm.configs().values())

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        found, rows, seconds = [], [], {}
        for arm in ARMS:
            measured = []
            for seed, (name, _) in arm.configs().items():
                model = load_trained(runs[name]).model
                assert isinstance(model, ConvDEQ)
                seconds = seconds or time_steps(model)
                measured.append(measure(model))
                rows.append({**vars(arm), "seed": seed, **measured[-1]})
            found.append((arm, Averages.over(measured)))
        write_csv(folder / "runs.csv", rows)
        arms = [
            ArmSummary(**vars(arm), is_chosen=is_chosen, num_seeds=averages.num_seeds, spreads=averages.spreads)
            for (arm, averages), is_chosen in zip(found, choose(found), strict=True)
        ]
        selection = [
            {
                **vars(arm),
                **{name: averages.mean(name) for name in ("validation_accuracy", "validation_evals")},
                "is_chosen": row.is_chosen,
            }
            for (arm, averages), row in zip(found, arms, strict=True)
        ]
        write_csv(folder / "selection.csv", selection)
        summary = Summary(step_seconds=seconds, arms=arms)
        save_figures({"accuracy_by_evaluations": draw(summary)}, folder)
        return summary

    def table(self, summary: Summary) -> str:
        columns = (_ACCURACY, _EVALS, _RADIUS, _SIGMA)
        rows = [
            [
                arm.penalty.replace("largest singular value", "σ(J)") + (f", {arm.weight:g}" if arm.weight else ""),
                f"{1 + summary.added(arm.penalty):.2f}",
                *(column.show(arm) for column in columns),
            ]
            for arm in map(summary.chosen, WEIGHTS)
        ]
        return markdown_table(["penalty and weight", "time of a step", *(column.title for column in columns)], rows)


def _compared(summary: Summary, *columns: Column) -> str:
    listed = (f"{column.title} {', '.join(column.show(summary.chosen(p)) for p in WEIGHTS)}" for column in columns)
    weights = ", ".join(
        f"{penalty}{f' ({arm.weight:g})' if arm.weight else ''}"
        for penalty in WEIGHTS
        for arm in [summary.chosen(penalty)]
    )
    return f"{weights}: {'; '.join(listed)}"


def _is_ordered(arm: ArmSummary) -> bool:
    """Say whether the three quantities are in order, as far as their errors let one tell."""
    names = ("spectral_radius", "operator_norm", "frobenius_norm")
    values = [arm.mean(name) for name in names]
    errors = [arm.spreads[f"{name}_error"].mean if f"{name}_error" in arm.spreads else 0 for name in names]
    return all(values[i] - errors[i] <= values[i + 1] + errors[i + 1] for i in range(2))


OPERATOR_NORM = _OperatorNorm(
    name="operator-norm",
    title="A penalty on the largest singular value (section 4.2)",
    statement="power iterations for the largest singular value are too expensive; the Frobenius norm bounds it, and is "
    "cheap",
    scales=("cpu",),
    takes="5 min",
    claims=(
        Claim(
            "the spectral radius is at most the largest singular value, and that at most the Frobenius norm (digits, "
            "all trained models)",
            section="4.2",
            holds=lambda s: all(map(_is_ordered, s.arms)),
            evidence=lambda s: _compared(s, _RADIUS, _SIGMA, _NORM),
        ),
        Claim(
            "a penalty on the Frobenius norm is cheaper than one on the largest singular value, which takes one "
            f"product with the Jacobian after the other ({NUM_STEPS} steps of the power method)",
            section="4.2",
            holds=lambda s: s.added(FROBENIUS) < s.added(SIGMA),
            evidence=lambda s: (
                f"a step with the penalty takes {s.added(FROBENIUS):+.0%} of the time of one without, against "
                f"{s.added(SIGMA):+.0%}"
            ),
        ),
        Claim(
            "it works at least as well: at weights chosen alike it costs at most a point more accuracy, and 5% more "
            "evaluations",
            section="4.2",
            source="own",
            threshold="stated before",
            holds=lambda s: (
                s.chosen(FROBENIUS).mean("accuracy") >= s.chosen(SIGMA).mean("accuracy") - 0.01
                and s.chosen(FROBENIUS).mean("evals") <= 1.05 * s.chosen(SIGMA).mean("evals")
            ),
            evidence=lambda s: _compared(s, _ACCURACY, _EVALS),
        ),
        Claim(
            "both penalties save evaluations",
            section="4.2",
            source="own",
            holds=lambda s: all(s.chosen(p).mean("evals") < s.chosen(NONE).mean("evals") for p in (FROBENIUS, SIGMA)),
            evidence=lambda s: _compared(s, _EVALS),
        ),
        Claim(
            "the penalty on the largest singular value lowers that more than the other one does",
            section="4.2",
            source="own",
            holds=lambda s: s.chosen(SIGMA).mean("operator_norm") < s.chosen(FROBENIUS).mean("operator_norm"),
            evidence=lambda s: _compared(s, _SIGMA, _NORM),
        ),
    ),
)
