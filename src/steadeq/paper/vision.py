"""The image classifiers that several tables and figures show, at each scale, with what the paper reports of them."""

from collections.abc import Mapping
from functools import partial

from ..lab.recipes.registry import Scale
from .variant import SEEDS, Variant, choose

RESNET, RESNET101, MONOTONE = "ResNet", "ResNet-101", "monotone DEQ"
MDEQ, STOPPED, MDEQ_JR = "MDEQ", "MDEQ, hard-stopped", "MDEQ + JR"
IMAGENETTE, IMAGENET, IMAGENET_LARGE = "Imagenette-64: ", "ImageNet, small: ", "ImageNet, large: "
"""What stands before the names of variants that are not about CIFAR-10."""


def _paper(num_parameters: str, accuracy: str, max_evals: str = "-") -> Mapping[str, str]:
    return {"num_parameters": num_parameters, "score": accuracy, "max_evals": max_evals}


# Table 2 of the paper. What it reports of ImageNet is not put beside Imagenette.
_PAPER: Mapping[str, Mapping[str, str]] = {
    RESNET: _paper("10M", "93.0 ± 0.1"),
    RESNET101: _paper("40M", "93.8 ± 0.3"),
    MONOTONE: _paper("1M", "89.4 ± 0.2", "24"),
    MDEQ: _paper("10M", "93.6 ± 0.2", "17"),
    STOPPED: _paper("10M", "89.1", "6"),
    MDEQ_JR: _paper("10M", "93.1 ± 0.3", "6"),
    IMAGENET + MDEQ: _paper("18M", "75.4", "27"),
    IMAGENET + MDEQ_JR: _paper("17M", "74.5", "14"),
    IMAGENET_LARGE + MDEQ: _paper("63M", "77.5", "30"),
    IMAGENET_LARGE + MDEQ_JR: _paper("62M", "76.8", "15"),
}
_VARIANTS: Mapping[Scale, tuple[Variant, ...]] = {
    "cpu": (
        Variant(RESNET, "cifar10-resnet-cpu", 0, 2, seeds=SEEDS),
        Variant(MONOTONE, "cifar10-monotone-cpu", 12, 6),
        Variant(MDEQ, "cifar10-mdeq-cpu", 12, 7, seeds=SEEDS),
        Variant(STOPPED, "cifar10-mdeq-cpu", 6, 7, seeds=SEEDS),
        Variant(MDEQ_JR, "cifar10-mdeq-cpu-jr", 6, 5, seeds=SEEDS),
        Variant(IMAGENETTE + RESNET, "imagenette64-resnet-cpu", 0, 1),
        Variant(IMAGENETTE + MDEQ, "imagenette64-mdeq-cpu", 12, 6),
        Variant(IMAGENETTE + STOPPED, "imagenette64-mdeq-cpu", 6, 6),
        Variant(IMAGENETTE + MDEQ_JR, "imagenette64-mdeq-cpu-jr", 6, 4),
    ),
    "paper": (
        Variant(RESNET, "cifar10-resnet18", 0, 1_500),
        Variant(RESNET101, "cifar10-resnet101", 0, 1_500),
        Variant(MDEQ, "cifar10-mdeq", 17, 1_500),
        Variant(STOPPED, "cifar10-mdeq", 6, 1_500),
        Variant(MDEQ_JR, "cifar10-mdeq-jr", 6, 1_500),
        Variant(IMAGENET + MDEQ, "imagenet-mdeq-small", 27, 10_000),
        Variant(IMAGENET + STOPPED, "imagenet-mdeq-small", 14, 10_000),
        Variant(IMAGENET + MDEQ_JR, "imagenet-mdeq-small-jr", 14, 10_000),
        Variant(IMAGENET_LARGE + MDEQ, "imagenet-mdeq-large", 30, 10_000),
        Variant(IMAGENET_LARGE + STOPPED, "imagenet-mdeq-large", 15, 10_000),
        Variant(IMAGENET_LARGE + MDEQ_JR, "imagenet-mdeq-large-jr", 15, 10_000),
    ),
}
classifiers = partial(choose, _VARIANTS, _PAPER)
"""Returns a function that gives variants by their names, or all, at a scale."""
