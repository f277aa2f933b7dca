"""Monotone maps of images by circular convolutions, which are block-diagonal in frequency."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .operator import AbstractMonotoneOperator, Blocks


class MonotoneConv(AbstractMonotoneOperator):
    """W for images: A and B are 3 by 3 convolutions with circular padding, so that W is block-diagonal in frequency.

    The kernels are normalized and carry one gain each, which keeps ‖W‖ moderate for any number of channels.

    Args:
        channels: Number of channels of the state.
        size: Height and width of the state, which the blocks are made for.
        m: Margin of monotonicity.

    Example:
        >>> operator = MonotoneConv(channels=3, size=(8, 6))
        >>> [tuple(block.shape) for block in operator.blocks()]
        [(8, 4, 3, 3)]
    """

    def __init__(self, *, channels: int, size: tuple[int, int], m: float = 1.0) -> None:
        super().__init__(m=m)
        self.size = size
        self.A = _random_kernel(channels, channels)
        self.B = _random_kernel(channels, channels)
        self.gain_A = nn.Parameter(torch.tensor(1.0))
        self.gain_B = nn.Parameter(torch.tensor(1.0))

    def forward(self, z: Tensor) -> Tensor:
        """Return W z for (B, channels, H, W) states of any size."""
        A, B = self._kernels()
        return (1 - self.m) * z - _transposed_conv(_conv(z, A), A) + _skew_conv(z, B)

    def transpose(self, y: Tensor) -> Tensor:
        """Return Wᵀ y for (B, channels, H, W) states of any size."""
        A, B = self._kernels()
        return (1 - self.m) * y - _transposed_conv(_conv(y, A), A) - _skew_conv(y, B)

    def blocks(self) -> Blocks:
        """Return (H, W // 2 + 1, channels, channels) complex matrices, one for each frequency of a real transform."""
        with torch.autocast(self.A.device.type, enabled=False):
            A, B = (_transfer(kernel, self.size) for kernel in self._kernels())
            return (self._monotone(A, B),)

    def apply_blocks(self, blocks: Blocks, v: Tensor) -> Tensor:
        """Return the product of (B, channels, H, W) images with the circular convolution that has this transform."""
        return _filter(v.to(self.A.dtype), blocks[0])

    def apply_resolvent(self, blocks: Blocks, v: Tensor) -> Tensor:
        """Return the product of (B, channels, H, W) images with the circular convolution that has this transform."""
        return _filter(v.to(self.A.dtype), blocks[0])

    def _kernels(self) -> tuple[Tensor, Tensor]:
        return _normalized(self.A, self.gain_A), _normalized(self.B, self.gain_B)


class MonotoneMultiConv(AbstractMonotoneOperator):
    """W for images at several resolutions, each half of the one before: the tiers of Winston and Kolter (2020).

    A is block-bidiagonal: convolutions A_i within the tiers, and strided ones S_i from each tier to the next, coarser
    one. B has a convolution B_i within each tier, and -A_(i+1)ᵀ S_i below it, which cancels what AᵀA has above its
    diagonal: W_ii = (1 - m) I - A_iᵀA_i - S_iᵀS_i + B_i - B_iᵀ and W_(i+1)i = -2 A_(i+1)ᵀ S_i. Information flows from
    fine to coarse only, and the resolvent goes from tier to tier by substitution.

    S_i ties 4 frequencies of a tier to each other. Taken as an image of half the size with 4 times the channels, one
    for each pixel of a 2 by 2 square, the tier is block-diagonal in frequency again: there S_i has no stride.

    Args:
        channels: Numbers of channels, from the finest tier to the coarsest.
        size: Height and width of the finest tier.
        m: Margin of monotonicity.

    Raises:
        ValueError: The size cannot be halved from tier to tier.

    Example:
        >>> operator = MonotoneMultiConv(channels=(3, 5), size=(8, 6))
        >>> z, coarser = operator((torch.randn(2, 3, 8, 6), torch.randn(2, 5, 4, 3)))
        >>> z.shape, coarser.shape
        (torch.Size([2, 3, 8, 6]), torch.Size([2, 5, 4, 3]))
        >>> [tuple(block.shape) for block in operator.blocks()]
        [(4, 2, 17, 12), (4, 2, 5, 5)]
    """

    def __init__(self, *, channels: tuple[int, ...], size: tuple[int, int], m: float = 1.0) -> None:
        super().__init__(m=m)
        for side in size:
            check_halvings("size", side, len(channels) - 1)
        self.sizes = [(size[0] >> tier, size[1] >> tier) for tier in range(len(channels))]
        self.A = nn.ParameterList(_random_kernel(c, c) for c in channels)
        self.B = nn.ParameterList(_random_kernel(c, c) for c in channels)
        self.S = nn.ParameterList(_random_kernel(coarse, fine) for fine, coarse in pairwise(channels))
        self.gain_A = nn.Parameter(torch.ones(len(channels)))
        self.gain_B = nn.Parameter(torch.ones(len(channels)))
        self.gain_S = nn.Parameter(torch.ones(len(channels) - 1))

    def forward(self, z: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return W z, for a state with one (B, channels, H, W) image for each tier."""
        A, B, S = self._kernels()
        results = []
        for tier, image in enumerate(z):
            result = (1 - self.m) * image + _skew_conv(image, B[tier])
            within = _conv(image, A[tier])
            if tier > 0:
                within = within + 2 * _conv(z[tier - 1], S[tier - 1], stride=2)
            result = result - _transposed_conv(within, A[tier])
            if tier < len(S):
                result = result - _transposed_conv(_spread(_conv(image, S[tier], stride=2)), S[tier])
            results.append(result)
        return tuple(results)

    def transpose(self, y: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return Wᵀ y, for a state with one (B, channels, H, W) image for each tier."""
        A, B, S = self._kernels()
        results = []
        for tier, image in enumerate(y):
            result = (1 - self.m) * image - _skew_conv(image, B[tier])
            result = result - _transposed_conv(_conv(image, A[tier]), A[tier])
            if tier < len(S):
                below = _conv(image, S[tier], stride=2) + 2 * _conv(y[tier + 1], A[tier + 1])
                result = result - _transposed_conv(_spread(below), S[tier])
            results.append(result)
        return tuple(results)

    def blocks(self) -> Blocks:
        """Return complex matrices for each tier, one for each frequency of a real transform.

        Those of all tiers but the last are (H / 2, W // 4 + 1, 4 channels + channels of the next, 4 channels).
        """
        with torch.autocast(self.gain_A.device.type, enabled=False):
            A, B, S = self._kernels()
            blocks = []
            for tier, (_, size) in enumerate(pairwise(self.sizes)):
                within, skew = (_transfer(_unshuffled(kernel), size) for kernel in (A[tier], B[tier]))
                down = _transfer(_unshuffled(S[tier], stride=2), size)
                own = self._monotone(torch.cat([within, down], dim=-2), skew)
                passed = -2 * _transfer(A[tier + 1], size).mH @ down
                blocks.append(torch.cat([own, passed], dim=-2))
            within, skew = (_transfer(kernel, self.sizes[-1]) for kernel in (A[-1], B[-1]))
            return (*blocks, self._monotone(within, skew))

    def apply_blocks(self, blocks: Blocks, v: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return W v, given its blocks: each tier adds to what comes out of the next."""
        own, passed = zip(*map(self._apply_tier, v, blocks), strict=True)
        return (own[0], *(result + added for result, added in zip(own[1:], passed[:-1], strict=True)))

    def apply_resolvent(self, blocks: Blocks, v: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return ((1 + alpha) I - alpha W)⁻¹ v, given its blocks: each tier adds to what goes into the next."""
        own, passed = self._apply_tier(v[0], blocks[0])
        results = [own]
        for image, block in zip(v[1:], blocks[1:], strict=True):
            own, passed = self._apply_tier(image + passed, block)
            results.append(own)
        return tuple(results)

    def _apply_tier(self, v: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the image of a tier adds to the tier itself, and to the next."""
        columns = block.shape[-1]
        factor = math.isqrt(columns // v.shape[1])
        result = _filter(F.pixel_unshuffle(v.to(self.gain_A.dtype), factor), block)
        return F.pixel_shuffle(result[:, :columns], factor), result[:, columns:]

    def _kernels(self) -> tuple[list[Tensor], ...]:
        return tuple(
            [_normalized(kernel, gain) for kernel, gain in zip(kernels, gains, strict=True)]
            for kernels, gains in ((self.A, self.gain_A), (self.B, self.gain_B), (self.S, self.gain_S))
        )


def check_halvings(name: str, size: int, num_halvings: int) -> None:
    """Refuse a height or width that cannot be halved a number of times.

    Raises:
        ValueError: Naming the size.
    """
    if size % 2**num_halvings:
        raise ValueError(f"{name} is {size}; {num_halvings + 1} tiers need a multiple of {2**num_halvings}.")


def _random_kernel(out_channels: int, in_channels: int) -> nn.Parameter:
    bound = (9 * in_channels) ** -0.5
    return nn.Parameter(torch.empty(out_channels, in_channels, 3, 3).uniform_(-bound, bound))


def _normalized(kernel: Tensor, gain: Tensor) -> Tensor:
    # Winston and Kolter's code scales AᵀA by a gain that may become negative, and with it the margin; this one is
    # squared in AᵀA.
    return gain * kernel / kernel.norm()


def _conv(z: Tensor, kernel: Tensor, *, stride: int = 1) -> Tensor:
    return F.conv2d(F.pad(z, (1, 1, 1, 1), mode="circular"), kernel, stride=stride)


def _transposed_conv(z: Tensor, kernel: Tensor) -> Tensor:
    return _conv(z, _adjoint_kernel(kernel))


def _skew_conv(z: Tensor, kernel: Tensor) -> Tensor:
    return _conv(z, kernel - _adjoint_kernel(kernel))


def _adjoint_kernel(kernel: Tensor) -> Tensor:
    return kernel.transpose(0, 1).flip(2, 3)


def _spread(z: Tensor) -> Tensor:
    """Return an image of twice the size, with zeros between the pixels: the transpose of a stride of 2."""
    return F.pixel_shuffle(F.pad(z[:, :, None], (0, 0, 0, 0, 0, 3)).flatten(1, 2), 2)


def _unshuffled(kernel: Tensor, *, stride: int = 1) -> Tensor:
    """Return the kernel of the same convolution for images after `pixel_unshuffle` by 2, which takes its stride away.

    Args:
        kernel: (out, in, 3, 3) weights.
        stride: Stride of the convolution: with 1 the output is unshuffled too, with 2 it is not.
    """
    # Output pixel r of a square finds its tap k at pixel p of square t.
    reached = torch.arange(2 // stride, device=kernel.device)[:, None] + torch.arange(-1, 2, device=kernel.device)
    found = F.one_hot(reached % 2, 2)[..., None] * F.one_hot(reached // 2 + 1, 3)[..., None, :]
    found = found.to(kernel.dtype)
    return torch.einsum("oikl,rkpt,slqu->orsipqtu", kernel, found, found).flatten(3, 5).flatten(0, 2)


def _transfer(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the transform of a kernel: output = transfer @ input at each frequency.

    Summed tap by tap, as 9 taps are fewer than a padded image has pixels, and as taps may wrap around small ones.
    """
    height, width = size
    taps = torch.arange(-1, 2, device=kernel.device, dtype=kernel.dtype)
    rows = torch.fft.fftfreq(height, device=kernel.device, dtype=kernel.dtype)
    columns = torch.fft.rfftfreq(width, device=kernel.device, dtype=kernel.dtype)
    row_waves, column_waves = (torch.exp(2j * math.pi * f[:, None] * taps) for f in (rows, columns))
    waves = torch.einsum("hk,wl->hwkl", row_waves, column_waves)
    return torch.einsum("hwkl,oikl->hwoi", waves, kernel.to(waves.dtype))


def _filter(v: Tensor, transfer: Tensor) -> Tensor:
    """Return the circular convolution of (B, channels, H, W) images that has a transform."""
    spectrum = torch.fft.rfft2(v)
    if torch.compiler.is_compiling():
        # In real numbers: compilers and ONNX know transforms, but no other arithmetic of complex numbers.
        (a, b), (c, d) = (torch.view_as_real(part).unbind(-1) for part in (transfer, spectrum))
        real, imaginary = (
            torch.einsum("hwij,bjhw->bihw", a, x) + torch.einsum("hwij,bjhw->bihw", b, y) for x, y in ((c, -d), (d, c))
        )
        product = torch.view_as_complex(torch.stack([real, imaginary], dim=-1))
    else:
        product = torch.einsum("hwij,bjhw->bihw", transfer, spectrum)
    return torch.fft.irfft2(product, s=v.shape[-2:])
