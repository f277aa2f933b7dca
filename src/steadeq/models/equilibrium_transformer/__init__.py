"""A modern Transformer block as the cell of an equilibrium model, and the same blocks as a stack."""

from .block import Attention, Norm, Positions, RMSNorm, TransformerBlock
from .cell import BlockCell, Injection
from .heads import AbstractHead, GridHead, ImageHead, LanguageHead
from .model import AbstractBlockConfig, EquilibriumTransformer, Kind, StackedTransformer

__all__ = [
    "AbstractBlockConfig",
    "AbstractHead",
    "Attention",
    "BlockCell",
    "EquilibriumTransformer",
    "GridHead",
    "ImageHead",
    "Injection",
    "Kind",
    "LanguageHead",
    "Norm",
    "Positions",
    "RMSNorm",
    "StackedTransformer",
    "TransformerBlock",
]
