"""The multiscale cell (Bai, Koltun and Kolter, 2020): residual blocks, then an exchange of all scales."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ...nn import WeightNormConv2d


class ResidualBlock(nn.Module):
    """The block of one scale.

    GN(ReLU(z + GN(x + mask * conv(ReLU(GN(conv(z))))))), both convolutions 3 by 3, the first one wider.

    Args:
        channels: Number of channels of the state.
        expansion: Width between the convolutions, as a multiple of `channels`.
        groups: Number of groups of every GroupNorm.
        weight_norm: Whether the convolutions have normalized weights.
    """

    def __init__(self, *, channels: int, expansion: int, groups: int, weight_norm: bool) -> None:
        super().__init__()
        hidden = expansion * channels
        self.conv1 = _conv(channels, hidden, 3, weight_norm=weight_norm)
        self.conv2 = _conv(hidden, channels, 3, weight_norm=weight_norm)
        self.norm1 = nn.GroupNorm(groups, hidden)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.norm3 = nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor | None, mask: Tensor | None) -> Tensor:
        """Map the state of a scale, what is injected there, and the dropout mask to a new state."""
        h = self.conv2(F.relu(self.norm1(self.conv1(z))))
        if mask is not None:
            h = h * mask
        if x is not None:
            h = h + x
        return self.norm3(F.relu(z + self.norm2(h)))


class Downsample(nn.Sequential):
    """Maps a scale to a coarser one by convolutions of stride 2; only the last one changes the width.

    Args:
        in_channels: Number of channels of the finer scale.
        out_channels: Number of channels of the coarser scale.
        num_halvings: How often the resolution is halved.
        groups: Number of groups of every GroupNorm.
    """

    def __init__(self, in_channels: int, out_channels: int, num_halvings: int, *, groups: int) -> None:
        layers: list[nn.Module] = []
        for index in range(num_halvings):
            is_last = index == num_halvings - 1
            width = out_channels if is_last else in_channels
            layers += [nn.Conv2d(in_channels, width, 3, stride=2, padding=1, bias=False), nn.GroupNorm(groups, width)]
            if not is_last:
                layers.append(nn.ReLU())
        super().__init__(*layers)


class Upsample(nn.Sequential):
    """Maps a scale to a finer one by a 1 by 1 convolution and by repeating pixels.

    Args:
        in_channels: Number of channels of the coarser scale.
        out_channels: Number of channels of the finer scale.
        num_doublings: How often the resolution is doubled.
        groups: Number of groups of the GroupNorm.
    """

    def __init__(self, in_channels: int, out_channels: int, num_doublings: int, *, groups: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
            nn.GroupNorm(groups, out_channels),
            nn.Upsample(scale_factor=2**num_doublings, mode="nearest"),
        )


class MDEQCell(nn.Module):
    """f of a multiscale DEQ: maps a tuple of feature maps, each half as large as the one before, to a new one.

    Args:
        channels: Number of channels of each scale, from fine to coarse.
        expansion: Width inside the residual blocks, as a multiple of a scale's channels.
        groups: Number of groups of every GroupNorm; half as many at the end of the cell.
        weight_norm: Whether residual blocks and post-fusion have normalized weights.
        post_affine: Whether the last normalization has parameters.
    """

    def __init__(
        self,
        *,
        channels: Sequence[int],
        expansion: int = 5,
        groups: int = 8,
        weight_norm: bool = True,
        post_affine: bool = False,
    ) -> None:
        super().__init__()
        scales = range(len(channels))
        self.blocks = nn.ModuleList(
            ResidualBlock(channels=c, expansion=expansion, groups=groups, weight_norm=weight_norm) for c in channels
        )
        self.fusions = nn.ModuleList(
            nn.ModuleList(_fusion(channels, source, scale, groups=groups) for source in scales) for scale in scales
        )
        self.posts = nn.ModuleList(_conv(c, c, 1, weight_norm=weight_norm) for c in channels)
        self.norms = nn.ModuleList(nn.GroupNorm(max(groups // 2, 1), c, affine=post_affine) for c in channels)

    def forward(self, z: Sequence[Tensor], x: Tensor, *masks: Tensor) -> tuple[Tensor, ...]:
        """Map a state to a new one.

        Args:
            z: Feature maps, from fine to coarse.
            x: What is injected into the finest scale.
            *masks: (B, channels, 1, 1) dropout mask of each scale, or nothing at all.
        """
        h = [
            block(state, x if scale == 0 else None, masks[scale] if masks else None)
            for scale, (block, state) in enumerate(zip(self.blocks, z, strict=True))
        ]
        new = []
        for scale, (fusions, post, norm) in enumerate(zip(self.fusions, self.posts, self.norms, strict=True)):
            total = h[scale]
            for source, fusion in enumerate(fusions):  # pyright: ignore[reportArgumentType]
                if source != scale:
                    total = total + fusion(h[source])
            new.append(norm(post(F.relu(total))))
        return tuple(new)


def _conv(in_channels: int, out_channels: int, kernel_size: int, *, weight_norm: bool) -> nn.Module:
    if weight_norm:
        return WeightNormConv2d(in_channels, out_channels, kernel_size)
    return nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)


def _fusion(channels: Sequence[int], source: int, scale: int, *, groups: int) -> nn.Module:
    if source < scale:
        return Downsample(channels[source], channels[scale], scale - source, groups=groups)
    if source > scale:
        return Upsample(channels[source], channels[scale], source - scale, groups=groups)
    return nn.Identity()
