"""Networks built around an equilibrium, and the explicit ones that they are compared with.

`model(x)` returns the output of every network; `model.solve(x)` of an `AbstractEquilibriumModel` returns the output and
the equilibrium. The sizes of a network are its `Config`, an `AbstractModelConfig`; `preset` and `create` know the
published ones by name.
"""

from .base import AbstractEquilibriumModel, AbstractModelConfig
from .conv import ConvCell, ConvDEQ
from .densenet import DenseNet
from .mdeq import MDEQ, MDEQCell, MDEQClassifier, MDEQSegmenter
from .monotone import MonotoneCell, MonotoneConv, MonotoneDEQ, MonotoneLinear
from .presets import available, create, preset
from .resnet import ResNet
from .toy import ToyCell, ToyDEQ
from .transformer import Carry, DEQTransformerLM, Predictions, TiedTransformer, TransformerCell, TransformerXL

__all__ = [
    "MDEQ",
    "AbstractEquilibriumModel",
    "AbstractModelConfig",
    "Carry",
    "ConvCell",
    "ConvDEQ",
    "DEQTransformerLM",
    "DenseNet",
    "MDEQCell",
    "MDEQClassifier",
    "MDEQSegmenter",
    "MonotoneCell",
    "MonotoneConv",
    "MonotoneDEQ",
    "MonotoneLinear",
    "Predictions",
    "ResNet",
    "TiedTransformer",
    "ToyCell",
    "ToyDEQ",
    "TransformerCell",
    "TransformerXL",
    "available",
    "create",
    "preset",
]
