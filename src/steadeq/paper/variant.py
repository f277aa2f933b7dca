"""Variants: which runs a row of a table stands for, what is measured of them, and means over seeds."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ..codec import AbstractCoded
from ..lab import recipes
from ..lab.config import TrainConfig
from ..lab.divergence import has_diverged
from ..lab.notation import error_note
from ..lab.recipes.registry import Scale
from ..lab.run.folder import RunFolder
from ..lab.run.record import EvaluationRow, RunRecord, Spread, TrainLine, spread
from ..lab.runner import complete_evaluation
from ..lab.serialization import differences
from .result import MissingNumber

SEEDS = (0, 1, 2)

NOT_FINISHED = "not finished yet"
"""How the reason begins for which a claim is not tested, where runs are missing."""


@dataclass(frozen=True)
class Variant:
    """Runs of one config with several seeds, evaluated at one budget."""

    name: str
    recipe: str
    max_evals: int = 0
    """Evaluations that a solve may take on test data; 0 for a network that solves nothing."""
    minutes: float = 0.0
    """About how long one run takes."""
    _: KW_ONLY
    seeds: tuple[int, ...] = (0,)
    change: Callable[[TrainConfig], TrainConfig] = lambda config: config
    """Returns the config to train instead of the recipe's."""
    label: str = ""
    """What follows the recipe in the names of the runs' folders; if empty, what was changed in the recipe."""
    paper: Mapping[str, str] = field(default_factory=dict)
    """What the paper reports, by the names of our own measures."""

    def configs(self) -> dict[str, TrainConfig]:
        """Return the run of each seed, by the name of its folder, which other variants may share.

        The name says what was changed in the recipe, as in `cifar10-mdeq-cpu-jr-weight-0.1-seed0`.
        """
        base = recipes.get(self.recipe).build()
        config = self.change(base)
        changed = (f"-{name.rpartition('.')[2]}-{value}" for name, _, value in differences(base, config))
        label = self.recipe + (f"-{self.label}" if self.label else "".join(changed))
        return {f"{label}-seed{seed}": replace(config, loop=replace(config.loop, seed=seed)) for seed in self.seeds}


def with_weight_decay(config: TrainConfig) -> TrainConfig:
    """Return a config with the weight decay of Figure 8."""
    return replace(config, optimizer=replace(config.optimizer, weight_decay=1e-6))


def choose(
    known: Mapping[Scale, Sequence[Variant]], paper: Mapping[str, Mapping[str, str]], *names: str
) -> Callable[[Scale], list[Variant]]:
    """Return a function that gives variants by their names, at a scale; those that are not there are left out.

    Args:
        known: All variants, by scale.
        paper: What the paper reports of them, by name.
        *names: Names of the variants; all without them.
    """

    def at(scale: Scale) -> list[Variant]:
        found = {variant.name: replace(variant, paper=paper.get(variant.name, {})) for variant in known[scale]}
        return [found[name] for name in names or found if name in found]

    return at


def plan(variants: Iterable[Variant]) -> dict[str, TrainConfig]:
    """Return all runs that variants need, by the names of their folders."""
    return {name: config for variant in variants for name, config in variant.configs().items()}


Measures = Mapping[str, float | None]
"""What is measured of a run, by name; None where there is no such number."""


def measure(record: RunRecord, rows: Mapping[int, EvaluationRow], max_evals: int) -> dict[str, float | None]:
    """Return what is measured of a run.

    Names that begin with `early` are means over the first tenth of training with solves, others that are about training
    over its last tenth. `residual_at_6` is the residual on test data after six evaluations.

    Args:
        record: A finished run, or one that diverged.
        rows: Its results on test data, by budget; empty if it diverged before its first checkpoint.
        max_evals: The budget of its score.
    """
    evaluated = rows.get(max_evals)
    at_budgets = {f"residual_at_{budget}": row.forward_residual for budget, row in rows.items() if budget}
    solved = [line for line in record.training if line.step > record.config.warmup.num_steps]
    size = max(len(solved) // 10, 1)

    def average(lines: Sequence[TrainLine], name: str) -> float | None:
        found = spread(getattr(line, name) for line in lines)
        return found and found.mean

    backward = spread(line.backward_residual for line in solved[-size:])
    first, last = (record.validations[place] if record.validations else None for place in (0, -1))
    return {
        "score": evaluated and evaluated.score,
        "forward_residual": evaluated and evaluated.forward_residual,
        "forward_evals": evaluated and evaluated.forward_evals,
        "seconds_per_sample": evaluated and evaluated.seconds_per_sample,
        "early_residual": average(solved[:size], "forward_residual"),
        "early_evals": average(solved[:size], "forward_evals"),
        "train_residual": average(solved[-size:], "forward_residual"),
        "train_evals": average(solved[-size:], "forward_evals"),
        "early_backward_residual": average(solved[:size], "backward_residual"),
        "backward_residual": backward and backward.mean,
        # How much it differs from step to step.
        "backward_fluctuation": backward and backward.std,
        "backward_evals": average(solved[-size:], "backward_evals"),
        "early_jacobian_norm": first and first.jacobian_norm,
        "jacobian_norm": last and last.jacobian_norm,
        "validation_score": last and last.score,
        "regularizer_weight": average(solved[-size:], "regularizer_weight"),
        "spectral_radius": last and last.spectral_radius,
        "spectral_radius_error": last and last.spectral_radius_error,
        "spectral_radius_unknown": last and last.spectral_radius_unknown,
        "spectral_radius_rayleigh": last and last.spectral_radius_rayleigh,
        "seconds_per_step": record.seconds_per_step,
        "memory_mb": record.training[-1].memory_mb if record.training else None,
        "diverged": float(has_diverged(record)),
        **at_budgets,
    }


def evaluate(path: Path, budgets: Sequence[int]) -> dict[int, EvaluationRow]:
    """Return the results of a run on test data, by budget; empty if it diverged before its first checkpoint."""
    record = RunRecord.read(path)
    if record.has_diverged and record.evaluation is None and not RunFolder(path).checkpoints().steps():
        return {}
    return {row.max_evals: row for row in complete_evaluation(path, budgets=budgets).rows}


_A = TypeVar("_A", bound="Averages")


@dataclass(frozen=True, kw_only=True)
class Averages(AbstractCoded):
    """Numbers over several seeds; subclasses add what they are the numbers of."""

    num_seeds: int
    spreads: Mapping[str, Spread]
    """Mean and standard deviation of everything that was measured."""

    @classmethod
    def over(cls: type[_A], rows: Sequence[Measures], **identity: Any) -> _A:
        """Return the averages of what was measured of each seed; what no seed has is left out.

        Args:
            rows: What was measured.
            **identity: Fields of the subclass.
        """
        found = {name: spread(row[name] for row in rows) for name in rows[0]}
        return cls(num_seeds=len(rows), spreads={name: s for name, s in found.items() if s is not None}, **identity)

    def mean(self, name: str) -> float:
        """Return the mean of a measure, or raise MissingNumber."""
        if name not in self.spreads:
            raise MissingNumber(f"{name} was not measured")
        return self.spreads[name].mean

    def scaled(self, name: str, factor: float) -> Spread:
        """Return a measure in another unit."""
        found = self.spreads[name]
        std = None if found.std is None else factor * found.std
        return Spread(mean=factor * found.mean, std=std, count=found.count)

    def adding(self: _A, **spreads: Spread) -> _A:
        """Return the averages with further measures."""
        return replace(self, spreads={**self.spreads, **spreads})

    def show(self, name: str, *, factor: float = 1.0, digits: str = ".3g") -> str:
        """Return a measure with its spread and its error, as people write it; a dash where there is none.

        Example:
            >>> found = {"score": spread([0.474, 0.490]), "radius": spread([0.93]), "radius_error": spread([0.02])}
            >>> row = Averages(num_seeds=2, spreads=found)
            >>> row.show("score", factor=100, digits=".1f"), row.show("radius"), row.show("time")
            ('48.2 ± 1.1', '0.93 (error 0.02)', '-')
        """
        found = self.spreads.get(name)
        if found is None:
            return "-"
        text = f"{factor * found.mean:{digits}}"
        if found.std is not None:
            text += f" ± {factor * found.std:{digits}}"
        error, unknown = (self.spreads.get(f"{name}_{what}") for what in ("error", "unknown"))
        return text + error_note(error and error.mean, unknown and unknown.mean)

    def to_json(self) -> dict[str, Any]:
        """Return everything in one object, a standard deviation as `name_std`."""
        content = {name: value for name, value in vars(self).items() if name not in ("num_seeds", "spreads")}
        content["num_seeds"] = self.num_seeds
        for name, found in self.spreads.items():
            content[name] = found.mean
            if found.std is not None:
                content[f"{name}_std"] = found.std
        return content

    @classmethod
    def from_json(cls: type[_A], content: Mapping[str, Any]) -> _A:
        """Return what `to_json` wrote."""
        num_seeds = content["num_seeds"]
        identity = {name: content[name] for name in cls.__dataclass_fields__ if name not in ("num_seeds", "spreads")}
        spreads = {}
        for name, mean in content.items():
            if name not in identity and name != "num_seeds" and not name.endswith("_std") and mean is not None:
                # One number has no spread.
                std = content.get(f"{name}_std") if num_seeds > 1 else None
                spreads[name] = Spread(mean=mean, std=std, count=num_seeds)
        return cls(num_seeds=num_seeds, spreads=spreads, **identity)


@dataclass(frozen=True, kw_only=True)
class VariantSummary(Averages):
    """What is known of a variant over its seeds: everything in `Measures`, and what some results add to it."""

    variant: str
    recipe: str
    max_evals: int
    paper: Mapping[str, str]


_REPORTED = re.compile(r"([\d.]+)(?: ± ([\d.]+))?(?:x|M| GB)?")
_UNITS = {"num_parameters": 1e6, "memory_mb": 1024.0}


def reported(variant: Variant) -> VariantSummary:
    """Return what the paper reports of a variant, in our units.

    Example:
        >>> paper = {"score": "93.1 ± 0.3", "max_evals": "6"}
        >>> found = reported(Variant("MDEQ + JR", "cifar10-mdeq-jr", seeds=(0, 1), paper=paper))
        >>> found.show("score", digits=".3f"), found.max_evals
        ('0.931 ± 0.003', 6)
    """
    is_share = recipes.get(variant.recipe).build().data.task.is_share
    spreads = {"diverged": Spread(mean=float("diverged" in variant.paper.values()), std=None, count=1)}
    for name, text in variant.paper.items():
        parts = _REPORTED.fullmatch(text)
        if parts is not None:
            unit = 0.01 if name == "score" and is_share else _UNITS.get(name, 1.0)
            mean, std = (None if part is None else unit * float(part) for part in parts.groups())
            assert mean is not None
            spreads[name] = Spread(mean=mean, std=std, count=1)
    if "time" in spreads:
        # Relative to another model, as are all claims on it.
        spreads["seconds_per_step"] = spreads["time"]
    budget = spreads.pop("max_evals", None)
    return VariantSummary(
        variant=variant.name,
        recipe=variant.recipe,
        max_evals=variant.max_evals if budget is None else round(budget.mean),
        paper=variant.paper,
        num_seeds=1,
        spreads=spreads,
    )


class Summary(dict[str, VariantSummary]):
    """Summaries by the names of their variants."""

    def __init__(
        self,
        rows: Iterable[tuple[str, VariantSummary]] = (),
        *,
        missing: Mapping[str, Sequence[str]] = MappingProxyType({}),
        stand_ins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(rows)
        self.missing = dict(missing)
        """The runs that are not finished yet, by the names of their variants; some of these may have other seeds."""
        self.stand_ins = dict(stand_ins)
        """Variants that stand for others, by the names of those: the same model as it trains best."""
        self.tried: dict[str, list[str]] = {}
        """Variants among which those were chosen, by the same names."""

    def __getitem__(self, name: str) -> VariantSummary:
        return super().__getitem__(self.stand_ins.get(name, name))

    def __missing__(self, name: str) -> VariantSummary:
        if name in self.missing:
            first, *others = self.missing[name]
            raise MissingNumber(f"{NOT_FINISHED}: {first}" + (f" and {len(others)} more" if others else ""))
        raise MissingNumber("there is no such run at this scale")

    @property
    def unused(self) -> set[str]:
        """Names of the variants that were tried, and do not stand for a model."""
        used = {self.stand_ins.get(name, name) for name in self.tried}
        return {name for names in self.tried.values() for name in names} - used

    def plans(self, name: str) -> bool:
        """Return whether there is such a variant at this scale, be it finished or not."""
        return name in self or name in self.missing

    def map(self, change: Callable[[VariantSummary], VariantSummary]) -> "Summary":
        """Return the summary with every row changed."""
        rows = ((name, change(row)) for name, row in self.items())
        changed = Summary(rows, missing=self.missing, stand_ins=self.stand_ins)
        changed.tried = self.tried
        return changed
