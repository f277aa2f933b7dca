"""Linear maps W for which I - W is strongly monotone by construction: W = (1 - m) I - AᵀA + B - Bᵀ.

The symmetric part of I - W is m I + AᵀA, so that <z, (I - W) z> >= m ‖z‖² whatever A and B are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._internal.validation import check_positive

Blocks = tuple[Tensor, ...]
"""A map as (..., rows, n) matrices, one stack of them for each tier of the state.

The first n rows are a diagonal block of the map in the basis in which it is block-diagonal; further rows are what the
tier adds to the next one.
"""


class AbstractMonotoneOperator(nn.Module, ABC):
    """The map z -> W z, with a margin m > 0 of monotonicity.

    A state is a tensor, or a tuple with one for each tier. Functions of W, such as its `resolvent`, are computed on
    `blocks()`: W itself for vectors, one matrix for each frequency for images.

    Args:
        m: Smallest eigenvalue that the symmetric part of I - W may have.
    """

    def __init__(self, *, m: float) -> None:
        super().__init__()
        check_positive("m", m)
        self.m = m

    @abstractmethod
    def forward(self, z: Any) -> Any:
        """Return W z."""

    @abstractmethod
    def transpose(self, y: Any) -> Any:
        """Return Wᵀ y."""

    @abstractmethod
    def blocks(self) -> Blocks:
        """Return W as matrices, for each tier."""

    @abstractmethod
    def apply_blocks(self, blocks: Blocks, v: Any) -> Any:
        """Return W v, given its blocks."""

    @abstractmethod
    def apply_resolvent(self, blocks: Blocks, v: Any) -> Any:
        """Return ((1 + alpha) I - alpha W)⁻¹ v, given the `resolvent` of the blocks of W."""

    def inverse(self, v: Any, *, alpha: float = 1.0) -> Any:
        """Return ((1 + alpha) I - alpha W)⁻¹ v; for more than one v, keep the `resolvent` of the blocks."""
        return self.apply_resolvent(resolvent(self.blocks(), alpha), v)

    def extra_repr(self) -> str:
        """Show the margin."""
        return f"m={self.m}"

    def _monotone(self, A: Tensor, B: Tensor) -> Tensor:
        """Return (1 - m) I - AᴴA + B - Bᴴ for (..., any, n) and (..., n, n) matrices."""
        return (1 - self.m) * _identity_like(B) - A.mH @ A + B - B.mH


class MonotoneLinear(AbstractMonotoneOperator):
    """W for vectors, a full matrix.

    Args:
        features: Number of features of the state.
        m: Margin of monotonicity.

    Example:
        >>> operator = MonotoneLinear(features=4, m=0.5)
        >>> (W,) = operator.blocks()
        >>> bool(torch.linalg.eigvalsh(torch.eye(4) - (W + W.T) / 2).min() >= 0.499)
        True
    """

    def __init__(self, *, features: int, m: float = 1.0) -> None:
        super().__init__(m=m)
        self.A = nn.Parameter(torch.empty(features, features))
        self.B = nn.Parameter(torch.empty(features, features))
        for parameter in (self.A, self.B):
            nn.init.uniform_(parameter, -(features**-0.5), features**-0.5)

    def forward(self, z: Tensor) -> Tensor:
        """Return W z for (B, features) states."""
        return self.apply_blocks(self.blocks(), z)

    def transpose(self, y: Tensor) -> Tensor:
        """Return Wᵀ y for (B, features) states."""
        return F.linear(y, self.blocks()[0].mT)

    def blocks(self) -> Blocks:
        """Return W, (features, features)."""
        with torch.autocast(self.A.device.type, enabled=False):
            return (self._monotone(self.A, self.B),)

    def apply_blocks(self, blocks: Blocks, v: Tensor) -> Tensor:
        """Return the product of (B, features) vectors with a matrix."""
        return F.linear(v, blocks[0])

    def apply_resolvent(self, blocks: Blocks, v: Tensor) -> Tensor:
        """Return the product of (B, features) vectors with a matrix."""
        return F.linear(v, blocks[0])


def resolvent(W: Blocks, alpha: float | Tensor) -> Blocks:
    """Return the blocks of ((1 + alpha) I - alpha W)⁻¹, to be used by `apply_resolvent`.

    The matrix is I + alpha (I - W), whose symmetric part is at least (1 + alpha m) I: it can be inverted for every
    alpha > 0, and its inverse is a contraction. For W with tiers, further rows are the product of those of alpha W with
    the inverse of the tier: what the next tier has to add before its own inverse.

    Args:
        W: Blocks of the operator.
        alpha: Step size of the splitting, positive.
    """

    def of_tier(block: Tensor) -> Tensor:
        n = block.shape[-1]
        inverse = torch.linalg.inv((1 + alpha) * _identity_like(block[..., :n, :]) - alpha * block[..., :n, :])
        return torch.cat([inverse, alpha * block[..., n:, :] @ inverse], dim=-2)

    # Half precision would lose the margin of monotonicity.
    with torch.autocast(W[0].device.type, enabled=False):
        return tuple(map(of_tier, W))


@torch.no_grad()
def norm_bound(W: Blocks, *, num_squarings: int = 5) -> Tensor:
    """Return an upper bound of ‖I - W‖, a scalar without a graph.

    For the columns G of a tier, ‖G‖² = ‖GᴴG‖, and the Frobenius norm is an upper bound; after k squarings it is too
    large by a factor of n^(1 / 2^(k+1)) at most (Gram iteration, Delattre et al., 2023). Unlike power iteration it is
    never too small. Columns of every other tier have no rows in common, so that together they have the norm of the
    largest; both kinds of tiers, if there are several, cost a factor of √2 at most.

    Args:
        W: The blocks.
        num_squarings: Batched matrix products to spend.
    """

    def of_tier(block: Tensor) -> Tensor:
        # G is kept at norm 1, and the logarithm of what it stands for apart, as powers leave the range of floats.
        G, log_norm = _normalized(_identity_like(block) - block)
        for _ in range(num_squarings):
            G, log_change = _normalized(G.mH @ G)
            log_norm = 2 * log_norm + log_change
        return (log_norm / 2**num_squarings).exp().amax()

    with torch.autocast(W[0].device.type, enabled=False):
        bounds = torch.stack([of_tier(block) for block in W])
        return torch.stack([bounds[kind::2].amax() for kind in range(min(len(W), 2))]).norm()


def _identity_like(matrices: Tensor) -> Tensor:
    return torch.eye(*matrices.shape[-2:], dtype=matrices.dtype, device=matrices.device)


def _normalized(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrices divided by their Frobenius norms, and the logarithms of these."""
    # For complex matrices, torch.linalg.matrix_norm takes longer than the products.
    norm = (matrices * matrices.conj()).real.sum((-2, -1), keepdim=True).sqrt()
    return matrices * (1 / norm), norm.log()
