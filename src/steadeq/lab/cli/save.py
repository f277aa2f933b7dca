"""`steadeq save`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...models import PretrainedModel
from ..cards import card_of_run
from ..errors import InputError
from ..run.loading import load_model
from ..run.record import RunRecord
from ..terminal import answer, note
from .arguments import parse, positional


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `save`."""

    run: Path = positional()
    """Folder of a run."""
    out: Path
    """Folder to make, with config.json, model.safetensors and README.md; -o for short."""
    step: int | None = None
    """Step of the checkpoint; the latest if not given."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function, which is executed."""


def run(arguments: Sequence[str]) -> int:
    """Write the folder of a run's model, with a card that says what is known about it."""
    summary = "Save the model of a run as a folder for from_pretrained and the Hugging Face Hub, with a model card."
    arguments = ["--out" if argument == "-o" else argument for argument in arguments]
    args = parse(Arguments, arguments, command="save", summary=summary)
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise InputError(f"{args.out} exists already; name another folder with --out.")
    record = RunRecord.read(args.run, recipe=args.recipe)
    model = load_model(args.run, step=args.step, recipe=args.recipe)
    if not isinstance(model, PretrainedModel):
        raise InputError(
            f"{type(model).__name__} has no save_pretrained; derive it from steadeq.models.PretrainedModel."
        )
    try:
        model.save_pretrained(args.out, card=card_of_run(record))
    except ValueError as error:
        raise InputError(str(error)) from error
    note(f"Written to {args.out}.")
    answer({"folder": args.out})
    return 0
