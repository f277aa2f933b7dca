"""Modules."""

from .deq import DEQ
from .dropout import draw_mask
from .shared import AbstractShared, computed_once
from .weight_norm import WeightNormConv2d

__all__ = ["DEQ", "AbstractShared", "WeightNormConv2d", "computed_once", "draw_mask"]
