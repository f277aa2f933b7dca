"""Runs that are there when they are needed: finished ones are reused, interrupted ones go on."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import Diverged, InputError
from ..train import Process, Run, TrainConfig, Trainer
from ..train.budgets import evaluate_budgets, write_evaluation
from ..train.display import AbstractDisplay
from ..train.serialization import differences


def complete_run(config: TrainConfig, path: Path, *, process: Process, display: AbstractDisplay) -> Run:
    """Return a finished run of a config, or one that diverged.

    Args:
        config: All about the run.
        path: Its folder.
        process: This process.
        display: Where progress is shown.

    Raises:
        InputError: The folder holds a run of another config.
    """
    run = Run(path)
    if run.exists():
        for field, old, new in differences(run.config(), config):
            raise InputError(
                f"{path} holds another run: its {field} is {old}, not {new}; name another folder with --out."
            )
        if run_state(path, config) in ("finished", "diverged"):
            return run
    trainer = Trainer(config, run, process=process, display=display)
    if not run.exists():
        Run.create(path, config)
    with run.lock(), suppress(Diverged):  # which is a result too
        trainer.resume()
        if not trainer.is_finished:
            trainer.train()
    return run


def run_state(path: Path, config: TrainConfig) -> str:
    """Return how far a run is: missing, another config, begun, at step N, diverged or finished."""
    run = Run(path)
    if not run.exists():
        return "missing"
    if differences(run.config(), config):
        return "another config"
    if run.has_diverged():
        return "diverged"
    metrics, loop = run.metrics(), config.loop
    evaluations = [record for record in metrics if record["event"] == "evaluation"]
    if evaluations:
        step, epoch = evaluations[-1]["step"], evaluations[-1]["epoch"]
        is_last = epoch >= loop.num_epochs if loop.num_steps is None else step >= loop.num_steps
        # The last line is written before the last checkpoint.
        if is_last and run.checkpoints().steps()[-1:] == [step]:
            return "finished"
    return f"at step {metrics[-1]['step']}" if metrics else "begun"


def complete_evaluation(run: Run, *, process: Process, budgets: tuple[int, ...]) -> dict[str, Any]:
    """Return the run's evaluation on its test split at some budgets, of which those are measured that are missing.

    Args:
        run: A finished run.
        process: Where to compute.
        budgets: Numbers of evaluations; (0,) for an explicit network.
    """
    known = _known(run)
    missing = [budget for budget in budgets if budget not in known]
    if not missing:
        result = json.loads((run.path / "evaluation.json").read_text())
    else:
        # The one row of an explicit network is that of 0, for which nobody can ask.
        result = evaluate_budgets(run, process, budgets=[budget for budget in missing if budget])
        known |= {row["max_evals"]: row for row in result["rows"]}
        write_evaluation(run.path, {**result, "rows": [known[budget] for budget in sorted(known)]})
    return {**result, "rows": [known[budget] for budget in budgets]}


def _known(run: Run) -> dict[int, dict[str, Any]]:
    """Return what evaluation.json says of the latest checkpoint, by budget; nothing if it is damaged."""
    try:
        result = json.loads((run.path / "evaluation.json").read_text())
        if result["split"] == "test" and result["step"] == run.checkpoints().steps()[-1]:
            return {row["max_evals"]: row for row in result["rows"]}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        pass
    return {}
