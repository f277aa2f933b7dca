"""Linear maps W for which I - W is strongly monotone by construction: W = (1 - m) I - AᵀA + B - Bᵀ.

The symmetric part of I - W is m I + AᵀA, so that <z, (I - W) z> >= m ‖z‖² whatever A and B are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._internal.validation import check_positive


class AbstractMonotoneOperator(nn.Module, ABC):
    """The map z -> W z, with a margin m > 0 of monotonicity.

    Functions of W, such as its `resolvent`, are computed on `blocks()`: W itself for vectors, one matrix for each
    frequency for images.

    Args:
        m: Smallest eigenvalue that the symmetric part of I - W may have.
    """

    def __init__(self, *, m: float) -> None:
        super().__init__()
        check_positive("m", m)
        self.m = m

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """Return W z."""

    @abstractmethod
    def transpose(self, y: Tensor) -> Tensor:
        """Return Wᵀ y."""

    @abstractmethod
    def blocks(self) -> Tensor:
        """Return the diagonal blocks of W in the basis in which it is block-diagonal, (..., n, n)."""

    @abstractmethod
    def apply_blocks(self, blocks: Tensor, v: Tensor) -> Tensor:
        """Return the product of v with the map that has these blocks."""

    def inverse(self, v: Tensor, *, alpha: float = 1.0) -> Tensor:
        """Return ((1 + alpha) I - alpha W)⁻¹ v; for more than one v, keep the `resolvent` of the blocks."""
        return self.apply_blocks(resolvent(self.blocks(), alpha), v)

    def extra_repr(self) -> str:
        """Show the margin."""
        return f"m={self.m}"


class MonotoneLinear(AbstractMonotoneOperator):
    """W for vectors, a full matrix.

    Args:
        features: Number of features of the state.
        m: Margin of monotonicity.

    Example:
        >>> operator = MonotoneLinear(features=4, m=0.5)
        >>> W = operator.blocks()
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
        return self.apply_blocks(self.blocks().mT, y)

    def blocks(self) -> Tensor:
        """Return W, (features, features)."""
        with torch.autocast(self.A.device.type, enabled=False):
            return _monotone(self.A, self.B, self.m)

    def apply_blocks(self, blocks: Tensor, v: Tensor) -> Tensor:
        """Return the product of (B, features) vectors with a matrix."""
        return F.linear(v, blocks)


class MonotoneConv(AbstractMonotoneOperator):
    """W for images: A and B are 3 by 3 convolutions with circular padding, so that W is block-diagonal in frequency.

    The kernels are normalized and carry one gain each, which keeps ‖W‖ moderate for any number of channels.

    Args:
        channels: Number of channels of the state.
        size: Height and width of the state, which the blocks are made for.
        m: Margin of monotonicity.

    Example:
        >>> operator = MonotoneConv(channels=3, size=(8, 6))
        >>> operator.blocks().shape
        torch.Size([8, 4, 3, 3])
    """

    def __init__(self, *, channels: int, size: tuple[int, int], m: float = 1.0) -> None:
        super().__init__(m=m)
        self.size = size
        self.A = nn.Parameter(torch.empty(channels, channels, 3, 3))
        self.B = nn.Parameter(torch.empty(channels, channels, 3, 3))
        for parameter in (self.A, self.B):
            nn.init.uniform_(parameter, -((9 * channels) ** -0.5), (9 * channels) ** -0.5)
        self.gain_A = nn.Parameter(torch.tensor(1.0))
        self.gain_B = nn.Parameter(torch.tensor(1.0))

    def forward(self, z: Tensor) -> Tensor:
        """Return W z for (B, channels, H, W) states of any size."""
        A, B = self._kernels()
        return self._symmetric(A, z) + _circular_conv(z, B - _adjoint_kernel(B))

    def transpose(self, y: Tensor) -> Tensor:
        """Return Wᵀ y for (B, channels, H, W) states of any size."""
        A, B = self._kernels()
        return self._symmetric(A, y) - _circular_conv(y, B - _adjoint_kernel(B))

    def blocks(self) -> Tensor:
        """Return (H, W // 2 + 1, channels, channels) complex matrices, one for each frequency of a real transform."""
        with torch.autocast(self.A.device.type, enabled=False):
            A, B = (self._transfer(kernel) for kernel in self._kernels())
            return _monotone(A, B, self.m)

    def apply_blocks(self, blocks: Tensor, v: Tensor) -> Tensor:
        """Return the product of (B, channels, H, W) images with the circular convolution that has this transform."""
        spectrum = torch.fft.rfft2(v.to(self.A.dtype))
        return torch.fft.irfft2(torch.einsum("hwij,bjhw->bihw", blocks, spectrum), s=self.size)

    def _kernels(self) -> tuple[Tensor, Tensor]:
        # Winston and Kolter's code scales AᵀA by a gain that may become negative, and with it the margin; this one is
        # squared in AᵀA.
        return self.gain_A * self.A / self.A.norm(), self.gain_B * self.B / self.B.norm()

    def _symmetric(self, A: Tensor, z: Tensor) -> Tensor:
        return (1 - self.m) * z - _circular_conv(_circular_conv(z, A), _adjoint_kernel(A))

    def _transfer(self, kernel: Tensor) -> Tensor:
        """Return the transform of a kernel: output = transfer @ input at each frequency.

        Summed tap by tap, as 9 taps are fewer than a padded image has pixels, and as taps may wrap around small ones.
        """
        height, width = self.size
        taps = torch.arange(-1, 2, device=kernel.device, dtype=kernel.dtype)
        rows = torch.fft.fftfreq(height, device=kernel.device, dtype=kernel.dtype)
        columns = torch.fft.rfftfreq(width, device=kernel.device, dtype=kernel.dtype)
        waves = (torch.exp(2j * math.pi * frequencies[:, None] * taps) for frequencies in (rows, columns))
        return torch.einsum("oikl,hk,wl->hwoi", kernel.to(kernel.dtype.to_complex()), *waves)


def resolvent(W: Tensor, alpha: float | Tensor) -> Tensor:
    """Return ((1 + alpha) I - alpha W)⁻¹ of (..., n, n) blocks.

    The matrix is I + alpha (I - W), whose symmetric part is at least (1 + alpha m) I: it can be inverted for every
    alpha > 0, and its inverse is a contraction.
    """
    # Half precision would lose the margin of monotonicity.
    with torch.autocast(W.device.type, enabled=False):
        return torch.linalg.inv((1 + alpha) * _identity_like(W) - alpha * W)


@torch.no_grad()
def norm_bound(W: Tensor, *, num_squarings: int = 5) -> Tensor:
    """Return an upper bound of ‖I - W‖ for (..., n, n) blocks, a scalar without a graph.

    ‖G‖² = ‖GᴴG‖, and the Frobenius norm is an upper bound; after k squarings it is too large by a factor of
    n^(1 / 2^(k+1)) at most (Gram iteration, Delattre et al., 2023). Unlike power iteration it is never too small.

    Args:
        W: The blocks.
        num_squarings: Batched matrix products to spend.
    """
    with torch.autocast(W.device.type, enabled=False):
        G = _identity_like(W) - W
        # G is kept at norm 1, and the logarithm of what it stands for apart, as powers leave the range of floats.
        norm = torch.linalg.matrix_norm(G, keepdim=True)
        G, log_norm = G / norm, norm.log()
        for _ in range(num_squarings):
            G = G.mH @ G
            norm = torch.linalg.matrix_norm(G, keepdim=True)
            G, log_norm = G / norm, 2 * log_norm + norm.log()
        return (log_norm / 2**num_squarings).exp().amax()


def _monotone(A: Tensor, B: Tensor, m: float) -> Tensor:
    return (1 - m) * _identity_like(A) - A.mH @ A + B - B.mH


def _identity_like(matrices: Tensor) -> Tensor:
    return torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)


def _circular_conv(z: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(F.pad(z, (1, 1, 1, 1), mode="circular"), kernel)


def _adjoint_kernel(kernel: Tensor) -> Tensor:
    return kernel.transpose(0, 1).flip(2, 3)
