"""`steadeq convert`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...models.official import read_official
from ..errors import InputError
from ..terminal import Work, answer, note
from .arguments import parse, positional


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `convert`."""

    file: Path = positional()
    """Checkpoint of locuslab/deq, locuslab/mdeq, locuslab/monotone_op_net or torchdeq's zoo: a state dict, or a file of
    a training run that holds one."""
    out: Path
    """Folder to make, with config.json and model.safetensors; -o for short."""
    preset: str | None = None
    """Preset that the checkpoint belongs to, such as mdeq/imagenet-small, instead of inferring it from the weights."""


def run(arguments: Sequence[str]) -> int:
    """Write the folder of a model with the weights of a checkpoint, and print how its config was found."""
    summary = "Convert an official checkpoint to a folder that load_model, from_pretrained and `steadeq evaluate` read."
    arguments = ["--out" if argument == "-o" else argument for argument in arguments]
    args = parse(Arguments, arguments, command="convert", summary=summary)
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise InputError(f"{args.out} exists already; name another folder with --out.")
    try:
        with Work(f"Converting {args.file}", 3) as work:
            checkpoint = read_official(args.file, preset_name=args.preset)
            work.advance()
            model = checkpoint.build()
            work.advance()
            model.save_pretrained(args.out)
    except ValueError as error:
        raise InputError(str(error)) from error
    fields = {field.name: getattr(model.config, field.name) for field in dataclasses.fields(model.config)}
    told = [name for name in fields if name in checkpoint.inferred]
    source = f"preset {checkpoint.preset}" if checkpoint.preset else "defaults"
    print(f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters")
    print(f"Inferred from the weights: {_list(fields, told)}")
    print(f"Assumed ({source}): {_list(fields, [name for name in fields if name not in told])}")
    note(f"Written to {args.out}.")
    answer({"folder": args.out})
    return 0


def _list(fields: dict[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={fields[name]!r}" for name in names)
