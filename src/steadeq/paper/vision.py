"""The image classifiers that several tables and figures show, at both scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..lab.recipes.registry import Scale
from .variant import Entry

DATA: dict[Scale, str] = {"cpu": "cifar10, imagenette64", "paper": "cifar10, imagenet"}
RESNET, RESNET101, MONOTONE = "ResNet", "ResNet-101", "monotone DEQ"
MDEQ, STOPPED, MDEQ_JR = "MDEQ", "MDEQ, hard-stopped", "MDEQ + JR"
IMAGENETTE, IMAGENET, IMAGENET_LARGE = "Imagenette-64: ", "ImageNet, small: ", "ImageNet, large: "
"""Before the names of entries that are not about CIFAR-10."""

# What the paper reports in Table 2. What it says of ImageNet is not put beside Imagenette.
_PAPER: dict[str, dict[str, str]] = {
    RESNET: {"size": "10M", "accuracy": "93.0 ± 0.1", "NFE": "-"},
    RESNET101: {"size": "40M", "accuracy": "93.8 ± 0.3", "NFE": "-"},
    MONOTONE: {"size": "1M", "accuracy": "89.4 ± 0.2", "NFE": "24"},
    MDEQ: {"size": "10M", "accuracy": "93.6 ± 0.2", "NFE": "17"},
    STOPPED: {"size": "10M", "accuracy": "89.1", "NFE": "6"},
    MDEQ_JR: {"size": "10M", "accuracy": "93.1 ± 0.3", "NFE": "6"},
    IMAGENET + MDEQ: {"size": "18M", "accuracy": "75.4", "NFE": "27"},
    IMAGENET + MDEQ_JR: {"size": "17M", "accuracy": "74.5", "NFE": "14"},
    IMAGENET_LARGE + MDEQ: {"size": "63M", "accuracy": "77.5", "NFE": "30"},
    IMAGENET_LARGE + MDEQ_JR: {"size": "62M", "accuracy": "76.8", "NFE": "15"},
}


def classifiers(*names: str) -> Callable[[Scale], list[Entry]]:
    """Return a function that gives entries by their names, or all, at a scale; those it has no runs for are left out.

    Args:
        *names: Of the entries; all without them.
    """

    def choose(scale: Scale) -> list[Entry]:
        known = {entry.name: entry for entry in (_cpu if scale == "cpu" else _paper)()}
        return [known[name] for name in names or known if name in known]

    return choose


def _cpu() -> list[Entry]:
    return [
        _entry(RESNET, "cifar10-resnet-cpu", 0),
        _entry(MONOTONE, "cifar10-monotone-cpu", 12, seeds=(0,)),
        _entry(MDEQ, "cifar10-mdeq-cpu", 12),
        _entry(STOPPED, "cifar10-mdeq-cpu", 6),
        _entry(MDEQ_JR, "cifar10-mdeq-cpu-jr", 6),
        _entry(IMAGENETTE + RESNET, "imagenette64-resnet-cpu", 0, seeds=(0,)),
        _entry(IMAGENETTE + MDEQ, "imagenette64-mdeq-cpu", 12, seeds=(0,)),
        _entry(IMAGENETTE + STOPPED, "imagenette64-mdeq-cpu", 6, seeds=(0,)),
        _entry(IMAGENETTE + MDEQ_JR, "imagenette64-mdeq-cpu-jr", 6, seeds=(0,)),
    ]


def _paper() -> list[Entry]:
    return [
        _entry(RESNET, "cifar10-resnet18", 0, seeds=(0,)),
        _entry(RESNET101, "cifar10-resnet101", 0, seeds=(0,)),
        _entry(MDEQ, "cifar10-mdeq", 17, seeds=(0,)),
        _entry(STOPPED, "cifar10-mdeq", 6, seeds=(0,)),
        _entry(MDEQ_JR, "cifar10-mdeq-jr", 6, seeds=(0,)),
        _entry(IMAGENET + MDEQ, "imagenet-mdeq-small", 27, seeds=(0,)),
        _entry(IMAGENET + STOPPED, "imagenet-mdeq-small", 14, seeds=(0,)),
        _entry(IMAGENET + MDEQ_JR, "imagenet-mdeq-small-jr", 14, seeds=(0,)),
        _entry(IMAGENET_LARGE + MDEQ, "imagenet-mdeq-large", 30, seeds=(0,)),
        _entry(IMAGENET_LARGE + STOPPED, "imagenet-mdeq-large", 15, seeds=(0,)),
        _entry(IMAGENET_LARGE + MDEQ_JR, "imagenet-mdeq-large-jr", 15, seeds=(0,)),
    ]


def _entry(name: str, recipe: str, max_evals: int, **options: Any) -> Entry:
    return Entry(name=name, recipe=recipe, max_evals=max_evals, paper=_PAPER.get(name, {}), **options)
