"""Transformers as deep equilibrium networks."""

from .cell import DropoutMasks, Norm, TransformerCell

__all__ = ["DropoutMasks", "Norm", "TransformerCell"]
