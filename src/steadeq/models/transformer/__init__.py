"""Transformers as deep equilibrium networks, and the explicit ones that they are compared with."""

from .cell import DropoutMasks, Norm, TransformerCell
from .explicit import TiedTransformer, TransformerXL
from .generation import Step, generate, vocabulary_size
from .language_model import DEQTransformerLM
from .sampling import Sampling
from .text import Memory, Predictions, Segment

__all__ = [
    "DEQTransformerLM",
    "DropoutMasks",
    "Memory",
    "Norm",
    "Predictions",
    "Sampling",
    "Segment",
    "Step",
    "TiedTransformer",
    "TransformerCell",
    "TransformerXL",
    "generate",
    "vocabulary_size",
]
