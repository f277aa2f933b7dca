"""`steadeq repair`: tune a trained cell that iterating makes worse, into a new run, and compare before and after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checks import check_count, check_positive
from ...diagnosis import Diagnosis, Verdict
from ...diagnosis.words import is_adding
from ...jacobian import JacobianRegularizer
from ..config import TrainConfig, WarmupConfig
from ..errors import InputError, RunError
from ..files import write_atomically
from ..report import Section, iteration_panel, write_report
from ..run.folder import RunFolder
from ..run.loading import TrainedModel, load_trained
from ..run.record import RunDiagnosis, RunRecord
from ..serialization import differences
from ..terminal import Work, answer, note
from ..train import Process, Trainer
from ..train.display import choose_display
from . import diagnose
from .arguments import parse, positional
from .table import print_table

_FACTOR = 16
"""Times the training depth at which a repaired cell must be right."""
_LOSS = 0.01
"""Part of the score at the training depth that a repair may cost."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `repair`."""

    run: Path = positional()
    """Folder of the run; nothing in it changes."""
    out: Path | None = None
    """Folder of the new run; by default the name of the run's folder with -repaired appended."""
    weight: float = 0.3
    """Weight of the penalty."""
    num_steps: int | None = None
    """Training steps; by default a quarter of those that the run had."""
    num_samples: int = 32
    """Number of validation samples that are diagnosed."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function. The file is executed."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda ..."""

    def __post_init__(self) -> None:
        check_positive("weight", self.weight)
        check_count("num_samples", self.num_samples)
        if self.num_steps is not None:
            check_count("num_steps", self.num_steps)


def run(arguments: Sequence[str]) -> int:
    """Diagnose a run, choose what to do, tune, and compare."""
    summary = "Diagnose a run and, if iterating makes it worse, tune it into a new run that settles."
    args = parse(Arguments, arguments, command="repair", summary=summary)
    out = args.run.with_name(f"{args.run.name}-repaired") if args.out is None else args.out
    if out.resolve() == args.run.resolve():
        raise InputError(f"--out is {out}; it must differ from the folder of the run.")
    with Process.join(args.device) as process:
        if process.world_size > 1:
            raise InputError("repair runs in a single process; start it without torchrun.")
        trained, before = _diagnosed(args.run, args, process)
        if (reason := _why_not(before.found)) is not None:
            print(before.found)
            answer({"run": args.run, "repaired": None, "reason": reason, "before": before.found.to_dict()})
            note(f"{args.run} was not repaired: {reason}.")
            return 0
        _tune(_tuned(trained, args), out, args, process)
        tuned, after = _diagnosed(out, args, process)
        diagnose.write(after, tuned, out)
    is_repaired = _is_repaired(before.found, after.found)
    sentence = _sentence(args.run, before.found, after.found, is_repaired=is_repaired)
    _write(before, after, out, sentence)
    _print(before.found, after.found)
    print(f"\n{sentence}")
    note(f"Written to {out}; open {out / 'repair.html'} in a browser to see it.")
    answer({"run": out, "repaired": is_repaired, "before": before.found.to_dict(), "after": after.found.to_dict()})
    if not is_repaired:
        raise RunError(
            f"{args.run} was not repaired; try --num-steps, --weight, or what else the documentation says under "
            "'Repair a trained loop'."
        )
    return 0


def _diagnosed(path: Path, args: Arguments, process: Process) -> tuple[TrainedModel, RunDiagnosis]:
    """Return a run's model, and what is found about it at many times its training depth."""
    trained = load_trained(path, device=process.device, recipe=args.recipe)
    max_evals = max(256, _FACTOR * trained.config.training_depth(trained.step))
    questions = diagnose.Arguments(run=path, num_samples=args.num_samples, max_evals=max_evals)
    with Work(f"Diagnosing {path}", 8) as work:
        return trained, diagnose.measure(trained, questions, process.device, work)


def _why_not(found: Diagnosis) -> str | None:
    """Return why nothing can or need be done, or None."""
    if found.is_random:
        return "its cell is random between evaluations"
    if found.effect == "helps" or (found.settles and found.effect != "hurts"):
        return "iterating it does no harm"
    if is_adding(found):
        return (
            "its cell adds to its state, which no penalty alone makes settle; put steadeq.nn.Normalized around it in "
            "your recipe, and tune that"
        )
    return None


def _tuned(trained: TrainedModel, args: Arguments) -> TrainConfig:
    """Return the config of the new run: as before, from the weights that are there, with the penalty."""
    config = trained.config
    regularizer = JacobianRegularizer(weight=args.weight, estimator="difference")
    loop = replace(config.loop, num_steps=args.num_steps or max(trained.step // 4, 1), init_from=args.run)
    return replace(config, regularizer=regularizer, warmup=WarmupConfig(), loop=loop)


def _tune(config: TrainConfig, out: Path, args: Arguments, process: Process) -> None:
    """Train the new run, or go on with it."""
    folder = RunFolder(out)
    if folder.exists():
        for field, old, new in differences(folder.config(recipe=args.recipe), config):
            raise InputError(f"{out} holds another run: its {field} is {old}, not {new}; name another with --out.")
    trainer = Trainer(config, folder, process=process, display=choose_display(), recipe=args.recipe)
    if not folder.exists():
        RunFolder.create(out, config)
    with folder.lock():
        trainer.resume()
        if not trainer.is_finished:
            trainer.train()


def _is_repaired(before: Diagnosis, after: Diagnosis) -> bool:
    """Return whether the cell keeps its score at its training depth and at many times that, and settles more."""
    if after.verdicts.count(Verdict.CONVERGES) <= before.verdicts.count(Verdict.CONVERGES) and not after.settles:
        return False
    if before.metric is None or after.metric is None:
        return after.settles
    old, new, late = before.metric[_depth(before)].mean(), *(after.metric[n].mean() for n in (_depth(after), -1))
    sign = 1 if after.higher_is_better else -1
    least = sign * float(old) - _LOSS * abs(float(old))
    return sign * float(new) >= least and sign * float(late) >= least - 4 * _LOSS * abs(float(old))


def _depth(found: Diagnosis) -> int:
    return found.training_depth or 1


def _sentence(run: Path, before: Diagnosis, after: Diagnosis, *, is_repaired: bool) -> str:
    settled = [f"{found.verdicts.count(Verdict.CONVERGES)} of {len(found.verdicts)}" for found in (before, after)]
    outcome = "repaired" if is_repaired else "not repaired"
    text = f"{run} is {outcome}: {settled[0]} samples settled before, {settled[1]} do"
    if before.metric is None or after.metric is None:
        return f"{text}."
    last = len(after.metric) - 1
    ends = [f"{float(found.metric[-1].mean()):.3g}" for found in (before, after) if found.metric is not None]
    return f"{text}; {after.metric_name} after {last} evaluations was {ends[0]}, and is {ends[1]}."


def _print(before: Diagnosis, after: Diagnosis) -> None:
    both = (before, after)
    rows = [
        [
            "samples that settle",
            *(f"{found.verdicts.count(Verdict.CONVERGES)} of {len(found.verdicts)}" for found in both),
        ],
        ["largest radius", *("" if d.radius is None else f"{float(d.radius.value.max()):.3g}" for d in both)],
    ]
    rows += [
        [f"{after.metric_name} at {depth}", f"{score:.4g}", f"{after.scores.get(depth, float('nan')):.4g}"]
        for depth, score in before.scores.items()
    ]
    print_table(["", "before", "after"], rows, title="Before and after")


def _write(before: RunDiagnosis, after: RunDiagnosis, out: Path, sentence: str) -> None:
    """Write both diagnoses and a report of the new run into its folder."""
    content: dict[str, Any] = {name: json.loads(d.to_json()) for name, d in (("before", before), ("after", after))}
    panels = [
        replace(panel, title=f"{name}: {panel.title}")
        for name, panel in (("Before", iteration_panel(before)), ("After", iteration_panel(after)))
    ]
    write_atomically(out / "repair.json", json.dumps(content, allow_nan=False))
    lead = Section(title="", intro=sentence, panels=panels)
    write_report([RunRecord.read(out)], out / "repair.html", title="Before and after", lead=lead)
