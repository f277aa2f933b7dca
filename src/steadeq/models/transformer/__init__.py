"""Transformers as deep equilibrium networks, and the explicit ones that they are compared with."""

from .cell import DropoutMasks, Norm, TransformerCell
from .explicit import TiedTransformer, TransformerXL
from .generation import Sampling, Step, generate, is_language_model, vocabulary_size
from .language_model import AbstractTransformerConfig, DEQTransformerLM
from .predictions import Carry, Predictions

__all__ = [
    "AbstractTransformerConfig",
    "Carry",
    "DEQTransformerLM",
    "DropoutMasks",
    "Norm",
    "Predictions",
    "Sampling",
    "Step",
    "TiedTransformer",
    "TransformerCell",
    "TransformerXL",
    "generate",
    "is_language_model",
    "vocabulary_size",
]
