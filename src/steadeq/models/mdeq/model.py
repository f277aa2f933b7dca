"""Multiscale deep equilibrium networks: stem, equilibrium, head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..._internal.validation import check_count, check_dropout
from ...adjoints import AbstractAdjoint, Implicit
from ...nn import DEQ, draw_mask
from ...solvers import GMRES, AbstractSolver, Anderson
from ..base import AbstractEquilibriumModel, AbstractModelConfig
from .cell import MDEQCell
from .heads import ClassificationHead, SegmentationHead

_SOLVER = Anderson(max_evals=18, tol=1e-3)
_ADJOINT = Implicit(GMRES(max_evals=20, tol=1e-4))


class MDEQ(AbstractEquilibriumModel):
    """The part that all multiscale DEQs share; its output is the tuple of feature maps, from fine to coarse.

    Args:
        config: The sizes; see `MDEQ.Config`.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> import torch
        >>> model = MDEQ(channels=(8, 16), groups=4, expansion=2)
        >>> fine, coarse = model(torch.zeros(2, 3, 16, 16))
        >>> fine.shape, coarse.shape
        (torch.Size([2, 8, 16, 16]), torch.Size([2, 16, 8, 8]))
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """A multiscale DEQ without a head."""

        channels: tuple[int, ...] = (32, 64, 128, 256)
        """Number of channels of each scale of the state, from fine to coarse."""
        image_channels: int = 3
        """Number of channels of the images: 1 for gray, 3 for color."""
        num_downsamplings: int = 0
        """Number of times that the first layers halve the resolution of the images; 0 keeps it."""
        expansion: int = 5
        """Number of channels inside the residual blocks, as a multiple of their scale's."""
        groups: int = 8
        """Number of groups of every GroupNorm; the last one of the cell has half as many."""
        dropout: float = 0.0
        """Probability that a channel is dropped inside a residual block, for a whole solve."""
        weight_norm: bool = True
        """Normalize the weights of the cell (weight normalization)."""
        post_affine: bool = False
        """Give the last normalization of the cell a learned scale and shift."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("image_channels", "expansion", "groups"):
                check_count(name, getattr(self, name))
            check_count("num_downsamplings", self.num_downsamplings, minimum=0)
            check_dropout("dropout", self.dropout)
            if not self.channels:
                raise ValueError("channels is empty; there must be at least one scale.")
            for width in self.channels:
                check_count("channels", width)
                if width % self.groups or width % max(self.groups // 2, 1):
                    raise ValueError(
                        f"channels has {width}; each scale must be a multiple of groups ({self.groups}), and so must "
                        "half of it."
                    )

    def __init__(
        self,
        config: MDEQ.Config | None = None,
        *,
        solver: AbstractSolver = _SOLVER,
        adjoint: AbstractAdjoint = _ADJOINT,
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = MDEQ.Config.resolve(config, fields)
        width = config.channels[0]
        self.stem = _stem(config.image_channels, width, config.num_downsamplings)
        # The official code leaves the transform out for small models on full-resolution images.
        is_plain = config.num_downsamplings == 0 and len(config.channels) <= 2
        self.injection = nn.Identity() if is_plain else _conv_norm_relu(width, width, 1)
        cell = MDEQCell(
            channels=config.channels,
            expansion=config.expansion,
            groups=config.groups,
            weight_norm=config.weight_norm,
            post_affine=config.post_affine,
        )
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)
        _initialize(self)

    def encode(self, x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return zeros as the start; the inputs are the image after the stem and a dropout mask for each scale."""
        injected = self.injection(self.stem(x))
        channels, dropout = self.config.channels, self.config.dropout
        batch, _, height, width = injected.shape
        factor = 2 ** (len(channels) - 1)
        if height % factor or width % factor:
            raise ValueError(
                f"The finest scale is {height} by {width}; with {len(channels)} scales both must be multiples of "
                f"{factor}."
            )
        z0 = tuple(injected.new_zeros(batch, c, height >> scale, width >> scale) for scale, c in enumerate(channels))
        if not self.training or dropout == 0:
            return z0, (injected,)
        masks = (draw_mask((batch, c, 1, 1), dropout, like=injected) for c in channels)
        return z0, (injected, *masks)

    def decode(self, z: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the feature maps themselves."""
        return z


class _AbstractMDEQWithHead(AbstractEquilibriumModel):
    """A multiscale DEQ with a head for some task.

    Args:
        backbone: The multiscale DEQ.
    """

    def __init__(self, backbone: MDEQ) -> None:
        super().__init__()
        self.backbone = backbone

    @property
    def layer(self) -> DEQ:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The equilibrium layer of the backbone."""
        return self.backbone.layer

    def encode(self, x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Encode as the backbone does."""
        return self.backbone.encode(x)


class MDEQClassifier(_AbstractMDEQWithHead):
    """An image classifier.

    Args:
        config: The sizes; see `MDEQClassifier.Config`.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> import torch
        >>> model = MDEQClassifier(channels=(8, 16), groups=4, expansion=2, final_channels=16)
        >>> logits, eq = model.solve(torch.zeros(2, 3, 16, 16))
        >>> logits.shape
        torch.Size([2, 10])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(MDEQ.Config):
        """A multiscale DEQ with a classification head."""

        head_channels: tuple[int, ...] | None = None
        """Number of channels inside the head's block of each scale; None for 7/16 of the scale's, as published for
        CIFAR-10."""
        final_channels: int = 1680
        """Number of channels of the last convolution, before the global average."""
        num_classes: int = 10
        """Number of classes to tell apart."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("final_channels", "num_classes"):
                check_count(name, getattr(self, name))
            if self.head_channels is None:
                return
            for width in self.head_channels:
                check_count("head_channels", width)
            if len(self.head_channels) != len(self.channels):
                raise ValueError(
                    f"head_channels is {self.head_channels}; it must have one entry for each of the "
                    f"{len(self.channels)} scales of channels."
                )

    def __init__(
        self,
        config: MDEQClassifier.Config | None = None,
        *,
        solver: AbstractSolver = _SOLVER,
        adjoint: AbstractAdjoint = _ADJOINT,
        **fields: Any,
    ) -> None:
        config = MDEQClassifier.Config.resolve(config, fields)
        super().__init__(MDEQ(MDEQ.Config.part_of(config), solver=solver, adjoint=adjoint))
        self.config = config
        self.head = ClassificationHead(
            channels=config.channels,
            head_channels=config.head_channels or [max(7 * width // 16, 1) for width in config.channels],
            final_channels=config.final_channels,
            num_classes=config.num_classes,
        )
        _initialize(self.head)

    def decode(self, z: Sequence[Tensor]) -> Tensor:
        """Return the logits."""
        return self.head(z)


class MDEQSegmenter(_AbstractMDEQWithHead):
    """Gives every pixel a class.

    Args:
        config: The sizes; see `MDEQSegmenter.Config`.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> import torch
        >>> model = MDEQSegmenter(channels=(8, 16), groups=4, expansion=2, num_downsamplings=2)
        >>> model(torch.zeros(2, 3, 32, 64)).shape
        torch.Size([2, 19, 32, 64])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(MDEQ.Config):
        """A multiscale DEQ with a segmentation head."""

        num_classes: int = 19
        """Number of classes that a pixel can have."""
        kernel_size: int = 1
        """Height and width of the last convolution's kernel in pixels, an odd number."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("num_classes", "kernel_size"):
                check_count(name, getattr(self, name))
            if self.kernel_size % 2 == 0:
                raise ValueError(f"kernel_size is {self.kernel_size}; it must be odd.")

    def __init__(
        self,
        config: MDEQSegmenter.Config | None = None,
        *,
        solver: AbstractSolver = _SOLVER,
        adjoint: AbstractAdjoint = _ADJOINT,
        **fields: Any,
    ) -> None:
        config = MDEQSegmenter.Config.resolve(config, fields)
        super().__init__(MDEQ(MDEQ.Config.part_of(config), solver=solver, adjoint=adjoint))
        self.config = config
        self.head = SegmentationHead(
            channels=config.channels, num_classes=config.num_classes, kernel_size=config.kernel_size
        )
        _initialize(self.head)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                # That of the official segmenter, whose batches are small.
                part.momentum = 0.01

    def decode(self, z: Sequence[Tensor]) -> Tensor:
        """Return the logits, at the resolution of the images."""
        logits = self.head(z)
        scale = 2**self.config.num_downsamplings
        return F.interpolate(logits, scale_factor=scale, mode="bilinear", align_corners=True) if scale > 1 else logits


def _initialize(module: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 0.01²); all others keep torch's default, as in the official code."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.normal_(part.weight, std=0.01)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.01)


def _stem(image_channels: int, channels: int, num_downsamplings: int) -> nn.Sequential:
    """Two convolutions or more, of stride 2 as long as the resolution is to be halved."""
    stem = nn.Sequential()
    # Layer by layer, so that a number of layers without end takes no memory before somebody stops it.
    for index in range(max(2, num_downsamplings)):
        width, stride = channels if index else image_channels, 2 if index < num_downsamplings else 1
        stem.append(_conv_norm_relu(width, channels, 3, stride))
    return stem


def _conv_norm_relu(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )
