"""Multiscale deep equilibrium networks: stem, injection, equilibrium, head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ...adjoint import AbstractAdjoint, Implicit
from ...nn import DEQ, draw_mask
from ...nn.dropout import check_dropout
from ...solvers import GMRES, AbstractSolver, Anderson
from ..base import AbstractEquilibriumModel
from .cell import MDEQCell
from .heads import ClassificationHead, SegmentationHead


class MDEQ(AbstractEquilibriumModel):
    """The part that all multiscale DEQs share; its output is the tuple of feature maps, from fine to coarse.

    Args:
        channels: Of each scale, from fine to coarse.
        image_channels: Of the images.
        num_downsamplings: How often the stem halves the resolution before the finest scale.
        expansion: Width inside the residual blocks, as a multiple of a scale's channels.
        groups: Of the group normalizations.
        dropout: Probability that a channel is dropped inside a residual block, for a whole solve.
        weight_norm: Whether the cell has normalized weights.
        post_affine: Whether the last normalization of the cell has parameters.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.

    Example:
        >>> import torch
        >>> model = MDEQ(channels=(8, 16), groups=4, expansion=2)
        >>> (fine, coarse), solution = model(torch.zeros(2, 3, 16, 16))
        >>> fine.shape, coarse.shape
        (torch.Size([2, 8, 16, 16]), torch.Size([2, 16, 8, 8]))
    """

    def __init__(
        self,
        *,
        channels: Sequence[int] = (32, 64, 128, 256),
        image_channels: int = 3,
        num_downsamplings: int = 0,
        expansion: int = 5,
        groups: int = 8,
        dropout: float = 0.0,
        weight_norm: bool = True,
        post_affine: bool = False,
        solver: AbstractSolver = Anderson(max_evals=18, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=20, tol=1e-4, memory=20)),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        _check_widths(channels, expansion, groups)
        check_dropout("dropout", dropout)
        self.channels, self.num_downsamplings, self.dropout = tuple(channels), num_downsamplings, dropout
        self.stem = _stem(image_channels, channels[0], num_downsamplings)
        # The official code leaves the transform out for small models on full-resolution images.
        is_plain = num_downsamplings == 0 and len(channels) <= 2
        self.injection = nn.Identity() if is_plain else _conv_norm_relu(channels[0], channels[0], 1)
        cell = MDEQCell(
            channels=channels, expansion=expansion, groups=groups, weight_norm=weight_norm, post_affine=post_affine
        )
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)
        initialize(self)

    def inject(self, x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Start all scales at zero; the cell takes the image after the stem, and a dropout mask for each scale."""
        injected = self.injection(self.stem(x))
        batch, _, height, width = injected.shape
        factor = 2 ** (len(self.channels) - 1)
        if height % factor or width % factor:
            raise ValueError(
                f"The finest scale is {height} by {width}; with {len(self.channels)} scales both must be multiples of "
                f"{factor}."
            )
        z0 = tuple(
            injected.new_zeros(batch, c, height >> scale, width >> scale) for scale, c in enumerate(self.channels)
        )
        if not self.training or self.dropout == 0:
            return z0, (injected,)
        masks = (draw_mask((batch, c, 1, 1), self.dropout, like=injected) for c in self.channels)
        return z0, (injected, *masks)

    def read_out(self, z: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the feature maps themselves."""
        return z


class AbstractMDEQTask(AbstractEquilibriumModel):
    """A multiscale DEQ with a head for some task.

    Args:
        backbone: The multiscale DEQ.
    """

    def __init__(self, backbone: MDEQ) -> None:
        super().__init__()
        self.backbone = backbone

    @property
    def layer(self) -> DEQ:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The backbone's."""
        return self.backbone.layer

    def inject(self, x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inject as the backbone does."""
        return self.backbone.inject(x)


class MDEQClassifier(AbstractMDEQTask):
    """An image classifier.

    Args:
        backbone: The multiscale DEQ.
        num_classes: Number of classes.
        head_channels: Inside the bottleneck of each scale.
        final_channels: Before the global average.

    Example:
        >>> import torch
        >>> backbone = MDEQ(channels=(8, 16), groups=4, expansion=2)
        >>> model = MDEQClassifier(backbone=backbone, head_channels=(2, 4), final_channels=16)
        >>> logits, solution = model(torch.zeros(2, 3, 16, 16))
        >>> logits.shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        backbone: MDEQ,
        num_classes: int = 10,
        head_channels: Sequence[int] = (14, 28, 56, 112),
        final_channels: int = 1680,
    ) -> None:
        super().__init__(backbone)
        self.head = ClassificationHead(
            channels=backbone.channels,
            head_channels=head_channels,
            final_channels=final_channels,
            num_classes=num_classes,
        )
        initialize(self.head)

    def read_out(self, z: Sequence[Tensor]) -> Tensor:
        """Return the logits."""
        return self.head(z)


class MDEQSegmenter(AbstractMDEQTask):
    """Gives every pixel a class.

    Args:
        backbone: The multiscale DEQ.
        num_classes: Number of classes.
        kernel_size: Of the last convolution.

    Example:
        >>> import torch
        >>> backbone = MDEQ(channels=(8, 16), groups=4, expansion=2, num_downsamplings=2)
        >>> logits, solution = MDEQSegmenter(backbone=backbone)(torch.zeros(2, 3, 32, 64))
        >>> logits.shape
        torch.Size([2, 19, 32, 64])
    """

    def __init__(self, *, backbone: MDEQ, num_classes: int = 19, kernel_size: int = 1) -> None:
        super().__init__(backbone)
        self.head = SegmentationHead(channels=backbone.channels, num_classes=num_classes, kernel_size=kernel_size)
        initialize(self.head)

    def read_out(self, z: Sequence[Tensor]) -> Tensor:
        """Return the logits, at the resolution of the images."""
        logits = self.head(z)
        scale = 2**self.backbone.num_downsamplings
        return F.interpolate(logits, scale_factor=scale, mode="bilinear", align_corners=False) if scale > 1 else logits


def initialize(module: nn.Module) -> None:
    """Draw weights from N(0, 0.01²), as the paper says; normalized weights keep torch's default, as in its code."""
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(part.weight, std=0.01)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.01)


def _stem(image_channels: int, channels: int, num_downsamplings: int) -> nn.Sequential:
    """Two convolutions or more, of stride 2 as long as the resolution is to be halved."""
    strides = [2 if index < num_downsamplings else 1 for index in range(max(2, num_downsamplings))]
    widths = [image_channels] + [channels] * len(strides)
    return nn.Sequential(
        *(_conv_norm_relu(width, channels, 3, stride) for width, stride in zip(widths, strides, strict=False))
    )


def _conv_norm_relu(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )


def _check_widths(channels: Sequence[int], expansion: int, groups: int) -> None:
    if not channels:
        raise ValueError("channels is empty; there must be at least one scale.")
    for width in channels:
        if width % groups or (expansion * width) % groups:
            raise ValueError(
                f"channels has {width}; each scale, and {expansion} times as much inside its block, must be a multiple "
                f"of groups ({groups})."
            )
