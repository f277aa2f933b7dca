"""The equilibrium layer, and modules that suit a cell: the same at every evaluation, and twice differentiable."""

from .._internal.allocator import keep_freed_memory
from .._internal.cached import AbstractCached, cached_parameters
from .._internal.masks import checkpoint_masks, hold_masks
from .adaptive_embedding import AdaptiveEmbedding
from .adaptive_softmax import AdaptiveSoftmax
from .deq import DEQ
from .dropout import VariationalDropout, draw_mask
from .normalized import Normalized
from .relative_attention import KeysValues, RelativeAttention, RelativePositions
from .starts import GaussianStart, solve_from_starts
from .weight_norm import WeightNormConv2d, WeightNormLinear, apply_weight_norm, remove_weight_norm

__all__ = [
    "DEQ",
    "AbstractCached",
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "GaussianStart",
    "KeysValues",
    "Normalized",
    "RelativeAttention",
    "RelativePositions",
    "VariationalDropout",
    "WeightNormConv2d",
    "WeightNormLinear",
    "apply_weight_norm",
    "cached_parameters",
    "checkpoint_masks",
    "draw_mask",
    "hold_masks",
    "keep_freed_memory",
    "remove_weight_norm",
    "solve_from_starts",
]
