"""The image classifiers that several tables and figures show, at each scale, with what the paper reports of them."""

from collections.abc import Mapping
from functools import partial

from ..lab.recipes.registry import Scale
from .variant import SEEDS, Variant, choose, with_weight_decay

RESNET, RESNET101, DENSENET = "ResNet", "ResNet-101", "DenseNet-121"
RESNET_DEEP, RESNET_GROUP_NORM = "ResNet, 110 layers", "ResNet, normalized in groups"
MONOTONE, MULTI_TIER = "monotone DEQ", "monotone DEQ, multi-tier"
MDEQ, STOPPED, MDEQ_JR, WEIGHT_DECAY = "MDEQ", "MDEQ, hard-stopped", "MDEQ + JR", "MDEQ, weight decay"
STOPPED_SOONER, MDEQ_JR_SOONER = "MDEQ, hard-stopped at half of that", "MDEQ + JR, stopped at half of that"
SMALL_BUDGET = "MDEQ, trained with few evaluations"
ANDERSON, ANDERSON_JR = "MDEQ, our solvers", "MDEQ + JR, our solvers"
LINEAR, CLOSED_LOOP = "MDEQ + JR, linear schedule", "MDEQ + JR, closed loop"
CLOSED_LOOP_EVALS = "MDEQ + JR, closed loop on evaluations"
SPECTRAL, RESIDUAL = "MDEQ + spectral radius, closed loop", "MDEQ + residual, closed loop"
VIT, VIT_JR = "equilibrium Transformer", "equilibrium Transformer + JR"
IMAGENETTE, IMAGENET, IMAGENET_LARGE = "Imagenette-64: ", "ImageNet, small: ", "ImageNet, large: "
"""What stands before the names of variants that are not about CIFAR-10."""
IMAGENET_RESNETS = ("ImageNet: ResNet-18", "ImageNet: ResNet-50", "ImageNet: ResNet-101")
_FIVE_SEEDS = (0, 1, 2, 3, 4)
"""Those over which the paper averages on CIFAR-10."""


def _paper(num_parameters: str, accuracy: str, max_evals: str = "-") -> Mapping[str, str]:
    return {"num_parameters": num_parameters, "score": accuracy, "max_evals": max_evals}


TABLE2_OF_THE_PAPER: Mapping[str, Mapping[str, str]] = {
    RESNET: _paper("10M", "93.0 ± 0.1"),
    RESNET101: _paper("40M", "93.8 ± 0.3"),
    DENSENET: _paper("8M", "95.0 ± 0.1"),
    MULTI_TIER: _paper("1M", "89.4 ± 0.2", "24"),
    MDEQ: _paper("10M", "93.6 ± 0.2", "17"),
    STOPPED: _paper("10M", "89.1", "6"),
    MDEQ_JR: _paper("10M", "93.1 ± 0.3", "6"),
    IMAGENET_RESNETS[0]: _paper("13M", "70.2"),
    "ImageNet: Inception-V2 (Ioffe and Szegedy, 2015)": _paper("12M", "74.8"),
    IMAGENET_RESNETS[1]: _paper("26M", "75.1"),
    IMAGENET_RESNETS[2]: _paper("52M", "77.1"),
    "ImageNet: DenseNet-264 (Huang et al., 2017)": _paper("74M", "79.7"),
    IMAGENET + MDEQ: _paper("18M", "75.4", "27"),
    IMAGENET_LARGE + MDEQ: _paper("63M", "77.5", "30"),
    IMAGENET + MDEQ_JR: _paper("17M", "74.5", "14"),
    IMAGENET_LARGE + MDEQ_JR: _paper("62M", "76.8", "15"),
}
"""All rows of Table 2, by the names of our variants. What it reports of ImageNet is not put beside Imagenette."""
_VARIANTS: Mapping[Scale, tuple[Variant, ...]] = {
    "cpu": (
        Variant(RESNET, "cifar10-resnet-cpu", 0, 2, seeds=SEEDS),
        Variant(MONOTONE, "cifar10-monotone-cpu", 12, 6),
        Variant(MULTI_TIER, "cifar10-monotone-multi-cpu", 12, 6),
        Variant(MDEQ, "cifar10-mdeq-cpu", 12, 7, seeds=SEEDS),
        Variant(STOPPED, "cifar10-mdeq-cpu", 6, 7, seeds=SEEDS),
        Variant(MDEQ_JR, "cifar10-mdeq-cpu-jr", 6, 5, seeds=SEEDS),
        Variant(IMAGENETTE + RESNET, "imagenette64-resnet-cpu", 0, 1),
        Variant(IMAGENETTE + MDEQ, "imagenette64-mdeq-cpu", 12, 6),
        Variant(IMAGENETTE + STOPPED, "imagenette64-mdeq-cpu", 6, 6),
        Variant(IMAGENETTE + MDEQ_JR, "imagenette64-mdeq-cpu-jr", 6, 4),
        Variant(WEIGHT_DECAY, "cifar10-mdeq-cpu-weight-decay", 12, 7),
    ),
    "day": (
        Variant(RESNET, "cifar10-resnet-day", 0, 7, seeds=SEEDS),
        Variant(RESNET_DEEP, "cifar10-resnet110-day", 0, 30),
        Variant(RESNET_GROUP_NORM, "cifar10-resnet-group-norm-day", 0, 8),
        Variant(MONOTONE, "cifar10-monotone-day", 12, 20),
        Variant(MULTI_TIER, "cifar10-monotone-multi-day", 12, 20),
        Variant(MDEQ, "cifar10-mdeq-day", 17, 42, seeds=SEEDS),
        Variant(STOPPED, "cifar10-mdeq-day", 6, 42, seeds=SEEDS),
        Variant(STOPPED_SOONER, "cifar10-mdeq-day", 3, 42, seeds=SEEDS),
        Variant(SMALL_BUDGET, "cifar10-mdeq-small-budget-day", 6, 20),
        Variant(MDEQ_JR, "cifar10-mdeq-jr-day", 6, 22, seeds=SEEDS),
        Variant(MDEQ_JR_SOONER, "cifar10-mdeq-jr-day", 3, 22, seeds=SEEDS),
        Variant(ANDERSON, "cifar10-mdeq-anderson-day", 17, 40),
        Variant(ANDERSON_JR, "cifar10-mdeq-jr-anderson-day", 6, 21),
        Variant(LINEAR, "cifar10-mdeq-jr-linear-day", 6, 22),
        Variant(CLOSED_LOOP, "cifar10-mdeq-jr-closed-loop-day", 6, 22),
        Variant(CLOSED_LOOP_EVALS, "cifar10-mdeq-jr-closed-loop-evals-day", 6, 32),
        Variant(SPECTRAL, "cifar10-mdeq-spectral-day", 6, 25),
        Variant(RESIDUAL, "cifar10-mdeq-residual-day", 6, 21),
        Variant(WEIGHT_DECAY, "cifar10-mdeq-weight-decay-day", 17, 42),
        Variant(VIT, "cifar10-vit-day", 17, 40),
        Variant(VIT_JR, "cifar10-vit-jr-day", 6, 20),
        Variant(IMAGENETTE + RESNET, "imagenette64-resnet-day", 0, 3),
        Variant(IMAGENETTE + MDEQ, "imagenette64-mdeq-day", 17, 22),
        Variant(IMAGENETTE + STOPPED, "imagenette64-mdeq-day", 6, 22),
        Variant(IMAGENETTE + MDEQ_JR, "imagenette64-mdeq-jr-day", 6, 11),
    ),
    "paper": (
        Variant(RESNET, "cifar10-resnet18", 0, 1_500, seeds=_FIVE_SEEDS),
        Variant(RESNET101, "cifar10-resnet101", 0, 1_500, seeds=_FIVE_SEEDS),
        Variant(DENSENET, "cifar10-densenet121", 0, 1_500, seeds=_FIVE_SEEDS),
        Variant(MULTI_TIER, "cifar10-monotone-multi", 24, 1_500, seeds=_FIVE_SEEDS),
        Variant(MDEQ, "cifar10-mdeq", 17, 1_500, seeds=_FIVE_SEEDS),
        Variant(STOPPED, "cifar10-mdeq", 6, 1_500, seeds=_FIVE_SEEDS),
        Variant(MDEQ_JR, "cifar10-mdeq-jr", 6, 1_500, seeds=_FIVE_SEEDS),
        Variant(IMAGENET_RESNETS[0], "imagenet-resnet18", 0, 3_000),
        Variant(IMAGENET_RESNETS[1], "imagenet-resnet50", 0, 5_000),
        Variant(IMAGENET_RESNETS[2], "imagenet-resnet101", 0, 8_000),
        Variant(IMAGENET + MDEQ, "imagenet-mdeq-small", 27, 10_000),
        Variant(IMAGENET + STOPPED, "imagenet-mdeq-small", 14, 10_000),
        Variant(IMAGENET + MDEQ_JR, "imagenet-mdeq-small-jr", 14, 10_000),
        Variant(IMAGENET_LARGE + MDEQ, "imagenet-mdeq-large", 30, 10_000),
        Variant(IMAGENET_LARGE + STOPPED, "imagenet-mdeq-large", 15, 10_000),
        Variant(IMAGENET_LARGE + MDEQ_JR, "imagenet-mdeq-large-jr", 15, 10_000),
        Variant(WEIGHT_DECAY, "cifar10-mdeq", 17, 1_500, change=with_weight_decay),
    ),
}
classifiers = partial(choose, _VARIANTS, TABLE2_OF_THE_PAPER)
"""Returns a function that gives variants by their names, or all, at a scale."""
