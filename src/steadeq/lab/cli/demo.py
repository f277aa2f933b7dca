"""`steadeq demo`: the main point in two minutes, on data that is drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..._internal.validation import check_count
from .. import recipes
from ..config import TrainConfig
from ..report import Panel, RunGroup, Section, iterations_figure, validation_evals_figure, write_report
from ..runner import complete_evaluation, complete_runs
from ..runs import RunRecord, Spread, spread
from ..train.display import choose_display
from .arguments import parse
from .table import print_table

_RECIPES = {"prefix-sums": "without the penalty", "prefix-sums-jr": "with the penalty"}
"""What is compared, by recipe."""
_TRAINED, _LONGER, _LONGEST = 12, 48, 192
"""Iterations in training, and at two times when the models are put to use."""
_ITERATIONS = (4, 8, _TRAINED, 16, 24, _LONGER, 96, _LONGEST)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `demo`."""

    out: Path = Path("runs/demo")
    """Folder for runs and report; what is finished there already is reused."""
    num_seeds: int = 3
    """How often each model is trained."""
    num_epochs: int | None = None
    """Epochs of every run, for an even shorter look; by default those of the recipes."""
    jobs: int = 2
    """Runs at a time."""

    def __post_init__(self) -> None:
        for name in ("num_seeds", "jobs"):
            check_count(name, getattr(self, name))
        if self.num_epochs is not None:
            check_count("num_epochs", self.num_epochs)


def run(arguments: Sequence[str]) -> int:
    """Train a looped block with and without Jacobian regularization, and iterate it longer than in training."""
    summary = "Train a looped block with and without Jacobian regularization, and iterate it longer than in training."
    args = parse(Arguments, arguments, command="demo", summary=summary)
    names = {recipe: [f"{recipe}-seed{seed}" for seed in range(args.num_seeds)] for recipe in _RECIPES}
    configs = {
        args.out / name: _config(recipe, seed, args) for recipe in names for seed, name in enumerate(names[recipe])
    }
    display = choose_display()
    complete_runs(configs, num_jobs=args.jobs, display=display)
    groups = []
    for recipe, label in _RECIPES.items():
        for name in names[recipe]:
            display.say(f"Iterating {name} for longer than it was trained.")
            # The last evaluation of a budget tells the residual, and is no iteration.
            complete_evaluation(args.out / name, budgets=[number + 1 for number in _ITERATIONS])
        records = tuple(RunRecord.read(args.out / name) for name in names[recipe])
        groups.append(RunGroup(label=label, runs=records))
    report, lead = args.out / "report.html", _lead(groups)
    write_report([r for g in groups for r in g.runs], report, title="Iterated longer than trained", lead=lead)
    print_table(
        ["trained", *(f"right after {n}" for n in (_TRAINED, _LONGER, _LONGEST)), "evaluations", "radius", "ms/step"],
        [_cells(group) for group in groups],
        title=f"Parity of strings of bits; {_TRAINED} iterations in training, {args.num_seeds} seeds",
    )
    print("right: strings with every position right; evaluations: until the state moves by less than 0.1%, at most")
    print(
        f"{_LONGER + 1}; radius: of the Jacobian's spectrum, above 1 iterations drive states apart; ms/step: a training"
    )
    print("step by the processor's clock; ±: standard deviation over seeds.")
    print(f"\n{lead.intro}\nOpen {report} in a browser to see it.")
    return 0


def _config(recipe: str, seed: int, args: Arguments) -> TrainConfig:
    config = recipes.get(recipe).build()
    num_epochs = config.loop.num_epochs if args.num_epochs is None else args.num_epochs
    return replace(config, loop=replace(config.loop, seed=seed, num_epochs=num_epochs))


def _lead(groups: Sequence[RunGroup]) -> Section:
    """Return what the report opens with: one sentence, and the figures that show it."""
    plain, regularized = ({n: _share(_score(group, n)) for n in (_TRAINED, _LONGER)} for group in groups)
    sentence = (
        f"Both networks are trained to answer after {_TRAINED} iterations of one block; then {plain[_TRAINED]} of the "
        f"answers are right without the penalty, {regularized[_TRAINED]} with it. Let them iterate {_LONGER} times: "
        f"without the penalty {plain[_LONGER]} are right, with it {regularized[_LONGER]}."
    )
    iterations, evaluations = iterations_figure(groups, training_depth=_TRAINED), validation_evals_figure(groups)
    assert iterations is not None
    assert evaluations is not None
    panels = [
        Panel(
            figure=iterations,
            title="Right answers by the number of iterations",
            caption=f"The line at {_TRAINED} is the training depth. A stable block stays right to the right of it.",
        ),
        Panel(
            figure=evaluations,
            title="Evaluations until the state stands still, as training goes on",
            caption=f"At most {_LONGER + 1}: at the top, the iteration no longer arrives anywhere.",
        ),
    ]
    return Section(title="", intro=sentence, panels=panels)


def _score(group: RunGroup, iterations: int) -> Spread:
    rows = [record.evaluation and record.evaluation.row(iterations + 1) for record in group.runs]
    found = spread(row.score for row in rows if row is not None)
    assert found is not None
    return found


def _share(found: Spread) -> str:
    return f"{found.mean:.0%}"


def _cells(group: RunGroup) -> list[str]:
    """Return a model's line of the closing table."""
    lasts = [record.validations[-1] for record in group.runs]
    numbers: Mapping[str, Spread | None] = {
        ".1f": spread(last.forward_evals for last in lasts),
        ".2f": spread(last.spectral_radius for last in lasts),
        ".0f": spread(None if (s := record.seconds_per_step) is None else 1e3 * s for record in group.runs),
    }
    shares = [_text(_score(group, n), ".0%") for n in (_TRAINED, _LONGER, _LONGEST)]
    return [group.label, *shares, *(_text(found, digits) for digits, found in numbers.items())]


def _text(found: Spread | None, digits: str) -> str:
    if found is None:
        return "-"
    return f"{found.mean:{digits}}" + ("" if found.std is None else f" ± {found.std:{digits}}")
