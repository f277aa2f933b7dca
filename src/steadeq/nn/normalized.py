"""A normalization after a block, which bounds its state."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._internal.trees import leaves, rebuild


class Normalized(nn.Module):
    """A block whose new state is normalized, so that iterating cannot make it grow.

    A block that adds to its state, z + g(z, x), keeps growing, and a penalty alone does not make it settle. Wrap the
    trained block in this module and fine-tune it with a penalty: see "Repair a trained loop" in the documentation.

    Args:
        block: Maps a state and inputs to a state: block(z, *inputs).
        *norms: A module for each tensor of the state, in their order, or one for all of them: `nn.GroupNorm(1, C)` for
            (B, C, ...), `nn.LayerNorm(D)` or `nn.RMSNorm(D)` for (B, T, D).

    Raises:
        ValueError: There is no norm or, when it is called, not one norm for each tensor of the state.

    Example:
        >>> import torch
        >>> block = Normalized(nn.Bilinear(4, 4, 4), nn.LayerNorm(4))
        >>> z = block(torch.ones(2, 4), torch.ones(2, 4))
        >>> bool(z.square().mean() < 1.01)
        True
    """

    def __init__(self, block: nn.Module, *norms: nn.Module) -> None:
        super().__init__()
        if not norms:
            raise ValueError("Normalized needs a norm, such as nn.LayerNorm(features).")
        self.block, self.norms = block, nn.ModuleList(norms)

    def forward(self, z: Any, *inputs: Any, **options: Any) -> Any:
        """Return the normalized image of a state, which is a tensor or a nested structure of them."""
        image = self.block(z, *inputs, **options)
        tensors = leaves(image)
        norms = list(self.norms) * (len(tensors) if len(self.norms) == 1 else 1)
        if len(norms) != len(tensors):
            raise ValueError(f"Normalized has {len(norms)} norms, and the state {len(tensors)} tensors.")
        return rebuild(image, iter([norm(tensor) for norm, tensor in zip(norms, tensors, strict=True)]))
