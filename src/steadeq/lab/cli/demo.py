"""`steadeq demo`: the main point in two minutes, on data that is drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checks import check_count
from .. import recipes
from ..config import TrainConfig
from ..report import Panel, RunGroup, Section, loop_figure, validation_evals_figure, write_report
from ..run.record import RunRecord, Spread, spread
from ..runner import complete_evaluation, complete_runs, run_state
from ..terminal import answer, note
from ..train.display import choose_display
from .arguments import parse
from .table import print_table

_RECIPES = {"prefix-sums": "without the penalty", "prefix-sums-jr": "with the penalty"}
"""What is compared, by recipe."""
_TRAINED, _LONGER, _LONGEST = 12, 48, 192
"""Evaluations of the block in training, and at two times when the models are put to use."""
_EVALS = (4, 8, _TRAINED, 16, 24, _LONGER, 96, _LONGEST)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `demo`."""

    out: Path = Path("runs/demo")
    """Folder for runs and report; finished runs in it are reused."""
    num_seeds: int = 3
    """Number of seeds with which each model is trained."""
    num_epochs: int | None = None
    """Number of epochs of every run, for a shorter demo; by default as in the recipes."""
    jobs: int = 2
    """Number of runs to train at the same time."""

    def __post_init__(self) -> None:
        for name in ("num_seeds", "jobs"):
            check_count(name, getattr(self, name))
        if self.num_epochs is not None:
            check_count("num_epochs", self.num_epochs)


def run(arguments: Sequence[str]) -> int:
    """Train a looped block with and without the penalty, let it run longer than in training, and write a report."""
    summary = (
        "Train a looped block with and without the Jacobian penalty, let it run longer than in training, and write a "
        "report. It takes about two minutes on two cores."
    )
    args = parse(Arguments, arguments, command="demo", summary=summary)
    names = {recipe: [f"{recipe}-seed{seed}" for seed in range(args.num_seeds)] for recipe in _RECIPES}
    configs = {
        args.out / name: _config(recipe, seed, args) for recipe in names for seed, name in enumerate(names[recipe])
    }
    display = choose_display()
    left = {path: config for path, config in configs.items() if run_state(path, config) != "finished"}
    if left:
        display.say(f"Training {len(left)} small networks in {args.out}, {min(args.jobs, len(left))} at a time.")
        complete_runs(left, num_jobs=args.jobs, display=display)
    groups = []
    for recipe, label in _RECIPES.items():
        for name in names[recipe]:
            complete_evaluation(args.out / name, budgets=_EVALS)
        records = tuple(RunRecord.read(args.out / name) for name in names[recipe])
        groups.append(RunGroup(label=label, runs=records))
    report, lead = args.out / "report.html", _lead(groups)
    write_report([r for g in groups for r in g.runs], report, title="Iterated longer than trained", lead=lead)
    print_table(
        ["penalty", *(f"right after {n}" for n in (_TRAINED, _LONGER, _LONGEST)), "to settle", "radius", "ms/step"],
        [_cells(group) for group in groups],
        title=f"Parity of strings of bits; {_TRAINED} evaluations of the block in training, {args.num_seeds} seeds",
    )
    note("right after N: strings with every bit right after N evaluations of the block")
    note(f"to settle: evaluations until the state moves by less than 0.1%; {_LONGER} means that it did not settle")
    note("radius: spectral radius of the Jacobian; above 1, each evaluation drives states apart")
    note("ms/step: processor time of a training step; ±: standard deviation over seeds")
    print(f"\n{lead.intro}")
    note(f"Open {report} in a browser to see it.")
    answer({"report": report, "networks": [_numbers(group) for group in groups]})
    return 0


def _config(recipe: str, seed: int, args: Arguments) -> TrainConfig:
    config = recipes.get(recipe).build()
    num_epochs = config.loop.num_epochs if args.num_epochs is None else args.num_epochs
    return replace(config, loop=replace(config.loop, seed=seed, num_epochs=num_epochs))


def _lead(groups: Sequence[RunGroup]) -> Section:
    """Return what the report opens with: one sentence, and the figures that show it."""
    plain, regularized = ({n: _share(_score(group, n)) for n in (_TRAINED, _LONGER)} for group in groups)
    sentence = (
        f"Both networks are trained to answer after {_TRAINED} evaluations of one block. At that depth, "
        f"{plain[_TRAINED]} of the answers are right without the penalty and {regularized[_TRAINED]} with it. After "
        f"{_LONGER} evaluations, {plain[_LONGER]} are right without the penalty and {regularized[_LONGER]} with it."
    )
    scores, evaluations = loop_figure(groups, training_depth=_TRAINED), validation_evals_figure(groups)
    assert scores is not None
    assert evaluations is not None
    panels = [
        Panel(
            figure=scores,
            title="Right answers against evaluations of the block",
            caption=f"Dashed: the {_TRAINED} evaluations of training. A stable block stays right beyond them.",
        ),
        Panel(
            figure=evaluations,
            title="Evaluations until the state settles, as training goes on",
            caption=f"At most {_LONGER} are made. At the top of the figure, the state does not settle.",
        ),
    ]
    return Section(title="", intro=sentence, panels=panels)


def _score(group: RunGroup, num_evals: int) -> Spread:
    rows = [record.evaluation and record.evaluation.row(num_evals) for record in group.runs]
    found = spread(row.score for row in rows if row is not None)
    assert found is not None
    return found


def _share(found: Spread) -> str:
    return f"{found.mean:.0%}"


def _measures(group: RunGroup) -> dict[str, tuple[Spread | None, str]]:
    """Return what the closing table says of a model by name, each with the format of its column."""
    lasts = [record.validations[-1] for record in group.runs]
    times = [None if (s := record.seconds_per_step) is None else 1e3 * s for record in group.runs]
    return {f"right_after_{n}": (_score(group, n), ".0%") for n in (_TRAINED, _LONGER, _LONGEST)} | {
        "evaluations_to_settle": (spread(last.forward_evals for last in lasts), ".1f"),
        "spectral_radius": (spread(last.spectral_radius for last in lasts), ".2f"),
        "ms_per_step": (spread(times), ".0f"),
    }


def _cells(group: RunGroup) -> list[str]:
    """Return a model's line of the closing table."""
    return [
        group.label.removesuffix(" the penalty"),
        *(_text(found, digits) for found, digits in _measures(group).values()),
    ]


def _numbers(group: RunGroup) -> dict[str, Any]:
    """Return the same for scripts."""
    found = {name: spread for name, (spread, _) in _measures(group).items() if spread is not None}
    return {"trained": group.label} | {name: {"mean": s.mean, "std": s.std} for name, s in found.items()}


def _text(found: Spread | None, digits: str) -> str:
    if found is None:
        return "-"
    # A deviation that the format cannot show says nothing.
    has_spread = found.std is not None and f"{found.std:{digits}}" != f"{0:{digits}}"
    return f"{found.mean:{digits}}" + (f" ± {found.std:{digits}}" if has_spread else "")
