"""Networks built around an equilibrium, and the explicit ones that they are compared with.

`model(x)` returns the output of every network; `model.solve(x)` of an `AbstractEquilibriumModel` returns the output and
the equilibrium. The sizes of a network are its `Config`, an `AbstractModelConfig`; `preset` and `create` know the
published ones by name. `save_pretrained` and `from_pretrained` write and read a folder, and `from_official` reads the
authors' checkpoints.
"""

from .base import AbstractEquilibriumModel, AbstractModelConfig
from .conv import ConvCell, ConvDEQ
from .densenet import DenseNet
from .equilibrium_transformer import BlockCell, EquilibriumTransformer, StackedTransformer, TransformerBlock
from .looped_conv import LoopedBlock, LoopedConv
from .mdeq import MDEQ, MDEQCell, MDEQClassifier, MDEQSegmenter
from .monotone import MonotoneCell, MonotoneConv, MonotoneDEQ, MonotoneLinear, MonotoneMultiConv
from .official import from_official
from .presets import available, create, preset
from .pretrained import PretrainedModel
from .resnet import ResNet
from .toy import ToyCell, ToyDEQ
from .transformer import Carry, DEQTransformerLM, Predictions, TiedTransformer, TransformerCell, TransformerXL

__all__ = [
    "MDEQ",
    "AbstractEquilibriumModel",
    "AbstractModelConfig",
    "BlockCell",
    "Carry",
    "ConvCell",
    "ConvDEQ",
    "DEQTransformerLM",
    "DenseNet",
    "EquilibriumTransformer",
    "LoopedBlock",
    "LoopedConv",
    "MDEQCell",
    "MDEQClassifier",
    "MDEQSegmenter",
    "MonotoneCell",
    "MonotoneConv",
    "MonotoneDEQ",
    "MonotoneLinear",
    "MonotoneMultiConv",
    "Predictions",
    "PretrainedModel",
    "ResNet",
    "StackedTransformer",
    "TiedTransformer",
    "ToyCell",
    "ToyDEQ",
    "TransformerBlock",
    "TransformerCell",
    "TransformerXL",
    "available",
    "create",
    "from_official",
    "preset",
]
