"""Transformers as deep equilibrium networks."""

from .cell import DropoutMasks, Norm, TransformerCell
from .language_model import DEQTransformerLM
from .text import Memory, Predictions, Segment

__all__ = ["DEQTransformerLM", "DropoutMasks", "Memory", "Norm", "Predictions", "Segment", "TransformerCell"]
