"""Modules."""

from .adaptive_embedding import AdaptiveEmbedding
from .adaptive_softmax import AdaptiveSoftmax
from .deq import DEQ
from .dropout import draw_mask
from .relative_attention import KeysValues, RelativeAttention, RelativePositions
from .shared import AbstractShared, computed_once
from .weight_norm import WeightNormConv2d
from .weight_norm_linear import WeightNormLinear, make_linear

__all__ = [
    "DEQ",
    "AbstractShared",
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "KeysValues",
    "RelativeAttention",
    "RelativePositions",
    "WeightNormConv2d",
    "WeightNormLinear",
    "computed_once",
    "draw_mask",
    "make_linear",
]
