"""The equilibrium layer, and modules that suit a cell: the same at every evaluation, and twice differentiable."""

from .adaptive_embedding import AdaptiveEmbedding
from .adaptive_softmax import AdaptiveSoftmax
from .cached import AbstractCached, cached_parameters
from .deq import DEQ
from .dropout import draw_mask
from .relative_attention import KeysValues, RelativeAttention, RelativePositions
from .starts import GaussianStart, solve_from_starts
from .weight_norm import WeightNormConv2d, WeightNormLinear

__all__ = [
    "DEQ",
    "AbstractCached",
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "GaussianStart",
    "KeysValues",
    "RelativeAttention",
    "RelativePositions",
    "WeightNormConv2d",
    "WeightNormLinear",
    "cached_parameters",
    "draw_mask",
    "solve_from_starts",
]
