"""Runs that are there when they are needed: finished ones are reused, interrupted ones go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..train import Process, Run, TrainConfig, Trainer
from ..train.budgets import evaluate_budgets, write_evaluation
from ..train.display import AbstractDisplay
from ..train.serialization import differences


def complete_run(config: TrainConfig, path: Path, *, process: Process, display: AbstractDisplay) -> Run:
    """Return a finished run of a config.

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
    trainer = Trainer(config, run, process=process, display=display)
    if not run.exists():
        Run.create(path, config)
    with run.lock():
        trainer.resume()
        if not trainer.is_finished:
            trainer.train()
    return run


def complete_evaluation(run: Run, *, process: Process, budgets: tuple[int, ...]) -> dict[str, Any]:
    """Return the run's evaluation on its test split at some budgets, measured if it is not there yet.

    Args:
        run: A finished run.
        process: Where to compute.
        budgets: Numbers of evaluations.
    """
    path = run.path / "evaluation.json"
    if path.is_file():
        try:
            result = json.loads(path.read_text())
            is_current = result["split"] == "test" and result["step"] == run.checkpoints().steps()[-1]
            if is_current and [row["max_evals"] for row in result["rows"]] == list(budgets):
                return result
        except (ValueError, KeyError, TypeError, IndexError):
            pass  # damaged: measured again
    result = evaluate_budgets(run, process, budgets=budgets)
    write_evaluation(run.path, result)
    return result
