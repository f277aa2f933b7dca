"""Networks built around an equilibrium; each forward returns `(output, Solution)`."""

from .base import AbstractEquilibriumModel, Equilibrium
from .conv import ConvCell, ConvDEQ
from .densenet import DenseNet
from .explicit import AbstractExplicitModel
from .mdeq import MDEQ, MDEQCell, MDEQClassifier, MDEQSegmenter
from .monotone import MonotoneConv, MonotoneDEQ, MonotoneLinear
from .registry import available, create
from .resnet import ResNet
from .toy import ToyCell, ToyDEQ
from .transformer import DEQTransformerLM, Predictions, Segment, TiedTransformer, TransformerCell, TransformerXL

__all__ = [
    "MDEQ",
    "AbstractEquilibriumModel",
    "AbstractExplicitModel",
    "ConvCell",
    "ConvDEQ",
    "DEQTransformerLM",
    "DenseNet",
    "Equilibrium",
    "MDEQCell",
    "MDEQClassifier",
    "MDEQSegmenter",
    "MonotoneConv",
    "MonotoneDEQ",
    "MonotoneLinear",
    "Predictions",
    "ResNet",
    "Segment",
    "TiedTransformer",
    "ToyCell",
    "ToyDEQ",
    "TransformerCell",
    "TransformerXL",
    "available",
    "create",
]
