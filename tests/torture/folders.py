"""Folders of models that somebody else made: refused in a sentence, in bounded time and memory, or used as they are."""

import json
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torture.configs import change
from torture.process import call, told

DTYPES = (torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float16, torch.float64)
SIZES = (0, -1, 7, 10**4, 10**6, 10**9, 10**12, 2**31, 2**62, 2**63, 10**30, 1e30, 0.5, "10", [10**9], [4] * 3000)
ODD = (
    "[" * 100_000,
    '{"class":' * 100_000,
    '{"class": ["a:b"]}',
    "null",
    "NaN",
    "",
    '{"class": 1' + "0" * 10_000 + "}",
)


def attempt(draw: Random, folder: Path) -> None:
    """Change a model's folder, and load it."""
    _model(draw).save_pretrained(folder / "model")
    config, weights = folder / "model" / "config.json", folder / "model" / "model.safetensors"
    way = draw.choice(("size", "size", "tree", "text", "dtype", "values", "nothing"))
    content, tensors = json.loads(config.read_text()), load_file(weights)
    name = draw.choice([name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()])
    dtype = None
    if way == "size":
        content[draw.choice([key for key in content if key != "class"])] = draw.choice(SIZES)
    elif way == "tree":
        change(draw, content)
    elif way == "dtype":
        dtype = draw.choice(DTYPES)
        tensors[name] = tensors[name].to(dtype)
    elif way == "values":
        tensors[name].flatten()[draw.randrange(tensors[name].numel())] = draw.choice((float("nan"), float("inf")))
    config.write_text(draw.choice(ODD) if way == "text" else json.dumps(content))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, weights)
    outcome = call(_load, folder / "model", folder=folder)
    codes = {"text": (2,), "values": (2,), "nothing": (0,)}.get(way, (0, 2))
    if dtype is not None and not (dtype.is_floating_point and dtype.itemsize > 1):
        codes = (2,)
    outcome.check(*codes, max_seconds=60, max_mb=500)


def _model(draw: Random) -> Any:
    from steadeq.models import DEQTransformerLM, MDEQClassifier, ResNet, ToyDEQ

    text = {"vocab_size": 30, "features": 8, "num_heads": 2, "hidden_features": 12, "cutoffs": (10,), "div_value": 2.0}
    makers = (
        lambda: ToyDEQ(hidden=6),
        lambda: MDEQClassifier(channels=(8, 8), expansion=2, final_channels=8),
        lambda: ResNet(blocks=(1, 1), widths=(4, 8)),
        lambda: DEQTransformerLM(**text),
    )
    return draw.choice(makers)()


def _load(path: Path) -> int:
    from steadeq import load_model

    return told(load_model, path)
