"""Model cards: a summary of a run for people who get only its model."""

from __future__ import annotations

from collections.abc import Iterator

from .run.record import Evaluation, RunRecord, ValidationLine
from .tasks import AbstractTask


def card_of_run(record: RunRecord) -> str:
    """Return Markdown on a run: its task, how it was trained, the metric against evaluations, and the spectral radius.

    What was not measured is named as such, with the command that measures it.
    """
    return "\n\n".join(_sections(record)) + "\n"


def _sections(record: RunRecord) -> Iterator[str]:
    config = record.config
    recipe = f"`{config.recipe}`" if config.recipe else "a config of its own"
    yield "## Task"
    yield f"{type(config.data).__qualname__.split('.')[0]}; the metric is {record.metric}."
    yield "## Training"
    versions = sorted({f"steadeq {s.steadeq} and PyTorch {s.torch}" for s in record.sessions if s.torch})
    state = "" if record.is_finished else ", not finished"
    lines = [
        f"* {recipe}, {record.step:,} steps, seed {config.loop.seed}{state}",
        f"* solver `{config.solver}`",
        f"* gradients by `{config.adjoint}`",
        f"* penalty `{config.regularizer}`" if record.is_regularized else "* no penalty on the Jacobian",
        f"* made with {', '.join(versions)}" if versions else "",
    ]
    yield "\n".join(line for line in lines if line)
    yield "## Metric against evaluations"
    if record.evaluation is None:
        yield f"Not measured; `steadeq evaluate {record.name}` measures it."
    else:
        yield _table(record.evaluation, record.task)
    yield "## Stability"
    yield _stability(record.validations[-1] if record.validations else None)


def _table(evaluation: Evaluation, task: AbstractTask) -> str:
    rows = [f"On {evaluation.split} data:", "", f"| evaluations | {evaluation.metric} | residual |", "|---|---|---|"]
    for row in evaluation.rows:
        residual = "-" if row.forward_residual is None else f"{row.forward_residual:.4g}"
        rows.append(f"| {row.max_evals or '-'} | {task.show(row.score, digits=4)} | {residual} |")
    return "\n".join(rows)


def _stability(line: ValidationLine | None) -> str:
    if line is None or line.spectral_radius is None:
        return "The spectral radius was not measured."
    error = "unknown" if line.spectral_radius_error is None else f"{line.spectral_radius_error:.2g}"
    largest = "" if line.spectral_radius_max is None else f", at most {line.spectral_radius_max:.3g}"
    return (
        f"Spectral radius of the Jacobian on validation samples: {line.spectral_radius:.3g} on average (error {error})"
        f"{largest}. Plain iteration converges where it is below 1."
    )
