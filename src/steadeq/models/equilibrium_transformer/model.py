"""The equilibrium of modern Transformer blocks, and a stack of them to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..._internal.validation import check_choice, check_count, check_positive
from ...adjoints import AbstractAdjoint, Implicit
from ...nn import DEQ
from ...nn.adaptive_embedding import check_clusters
from ...solvers import GMRES, AbstractSolver, Anderson
from ..base import AbstractEquilibriumModel, AbstractModelConfig
from ..pretrained import PretrainedModel
from .block import Attention, Norm, Positions, TransformerBlock, check_block
from .cell import BlockCell, Injection, check_cell
from .heads import AbstractHead, GridHead, ImageHead, LanguageHead

Kind = Literal["language", "image", "grid"]
"""Task of a model: the next token of a text, the class of an image, or a class for each token of a grid."""


@dataclass(frozen=True, kw_only=True)
class AbstractBlockConfig(AbstractModelConfig):
    """What networks of modern Transformer blocks have: a task and the sizes of a block."""

    kind: Kind
    """Task of the model: "language" predicts the next token of a text, "image" the class of an image, "grid" a class
    for each token of a grid."""
    vocab_size: int | None = None
    """Number of tokens of the vocabulary; required for texts and grids, None for images."""
    cutoffs: tuple[int, ...] = ()
    """Token numbers at which the adaptive embedding and softmax begin a new cluster of rarer tokens; for texts only."""
    div_value: float = 1.0
    """Factor by which each cluster of rarer tokens has fewer features than the one before; for texts only."""
    image_channels: int = 3
    """Number of channels of the images: 1 for gray, 3 for color; for images only."""
    patch_size: int = 4
    """Height and width of the patches that an image is cut into, in pixels; for images only."""
    image_size: int | None = None
    """Height and width of the images in pixels, for learned positions; None takes any size, with rotary positions
    alone."""
    num_classes: int = 10
    """Number of classes to tell apart; for images and grids."""
    features: int = 128
    """Number of features of each position (d_model)."""
    num_heads: int = 4
    """Number of heads of the attention."""
    hidden_features: int = 256
    """Number of features inside the gated feed-forward part."""
    norm: Norm = "pre"
    """Place of the normalizations in a block: "pre" before each part, "post" after it."""
    attention: Attention = "math"
    """Computation of attention: "math" has the second derivatives of the usual penalty; "fused" (torch's kernel) needs
    its estimator "difference"."""
    residual_scale: float = 1.0
    """Factor of each branch of a block before it is added to the residual stream."""
    rotary_base: float | None = 10_000.0
    """Base of the rotary encoding of positions; None for no such encoding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("kind", self.kind, get_args(Kind))
        if self.kind == "image":
            if self.vocab_size is not None:
                raise ValueError(f"vocab_size is {self.vocab_size}, but images have no tokens; leave it out.")
        elif self.vocab_size is None:
            raise ValueError(f"vocab_size is missing; kind {self.kind!r} needs the number of tokens.")
        else:
            check_count("vocab_size", self.vocab_size)
        for name in ("image_channels", "patch_size", "num_classes"):
            check_count(name, getattr(self, name))
        if self.image_size is not None:
            check_count("image_size", self.image_size)
            if self.image_size % self.patch_size:
                raise ValueError(
                    f"image_size is {self.image_size}; it must be a multiple of patch_size ({self.patch_size})."
                )
        check_block(
            features=self.features,
            num_heads=self.num_heads,
            hidden_features=self.hidden_features,
            norm=self.norm,
            attention=self.attention,
            residual_scale=self.residual_scale,
        )
        if self.kind == "language":
            assert self.vocab_size is not None
            check_clusters(
                vocab_size=self.vocab_size, features=self.features, cutoffs=self.cutoffs, div_value=self.div_value
            )
        if self.rotary_base is not None:
            check_positive("rotary_base", self.rotary_base)

    def make_head(self) -> AbstractHead:
        """Return the encoder and the decoder of the network, freshly initialized."""
        if self.kind == "image":
            return ImageHead(
                self.features,
                image_channels=self.image_channels,
                patch_size=self.patch_size,
                image_size=self.image_size,
                num_classes=self.num_classes,
            )
        assert self.vocab_size is not None
        if self.kind == "grid":
            return GridHead(self.features, vocab_size=self.vocab_size, num_classes=self.num_classes)
        return LanguageHead(self.features, vocab_size=self.vocab_size, cutoffs=self.cutoffs, div_value=self.div_value)

    def make_block(self) -> TransformerBlock:
        """Return a block, freshly initialized."""
        return TransformerBlock(
            features=self.features,
            num_heads=self.num_heads,
            hidden_features=self.hidden_features,
            norm=self.norm,
            attention=self.attention,
            residual_scale=self.residual_scale,
        )

    def make_positions(self, x: Tensor, *, causal: bool) -> Positions:
        """Return the positions of (B, ..., features) vectors."""
        return Positions.of_grid(
            x.shape[1:-1],
            head_features=self.features // self.num_heads,
            base=self.rotary_base,
            causal=causal,
            like=x,
        )


class EquilibriumTransformer(AbstractEquilibriumModel):
    """A Transformer whose depth is the equilibrium of one or a few modern blocks, for texts, images or grids.

    The vectors of the positions are injected at each evaluation; see `BlockCell`. A language model returns
    `Predictions`, one for images (B, classes) logits, and one for grids (B, classes, ...) logits.

    Args:
        config: The sizes; see `EquilibriumTransformer.Config`.
        solver: How to find the equilibrium; by default `Anderson(max_evals=18, tol=1e-3)`, causal for texts.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> model = EquilibriumTransformer(kind="image", patch_size=2, features=16, hidden_features=32)
        >>> logits, eq = model.solve(torch.randn(3, 3, 8, 8))
        >>> logits.shape, eq.z.shape
        (torch.Size([3, 10]), torch.Size([3, 4, 4, 16]))
        >>> model = EquilibriumTransformer(kind="language", vocab_size=100, features=16, hidden_features=32)
        >>> model(torch.randint(100, (2, 6))).log_probabilities().shape
        torch.Size([2, 6, 100])
        >>> model = EquilibriumTransformer(kind="grid", vocab_size=10, num_classes=9, features=16, hidden_features=32)
        >>> model(torch.randint(10, (2, 9, 9))).shape
        torch.Size([2, 9, 9, 9])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractBlockConfig):
        """The equilibrium of modern Transformer blocks."""

        num_blocks: int = 1
        """Number of blocks of the cell, each with weights of its own."""
        injection: Injection = "add"
        """How the input enters the cell: "add" adds it to the state, "concat" feeds both to a linear layer."""
        outer_norm: bool = True
        """Normalize the state that the cell returns."""
        relaxation: float = 1.0
        """Length of the step from the state towards the output of the blocks; 1 goes all the way, and the equilibria do
        not depend on it."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_cell(num_blocks=self.num_blocks, injection=self.injection, relaxation=self.relaxation)

    def __init__(
        self,
        config: EquilibriumTransformer.Config | None = None,
        *,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=18, tol=1e-4)),  # noqa: B008 (frozen)
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = EquilibriumTransformer.Config.resolve(config, fields)
        self.head = config.make_head()
        cell = BlockCell(
            [config.make_block() for _ in range(config.num_blocks)],
            features=config.features,
            injection=config.injection,
            outer_norm=config.outer_norm,
            relaxation=config.relaxation,
        )
        if solver is None:
            solver = Anderson(max_evals=18, tol=1e-3, causal=self.head.causal)
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)

    def encode(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Positions]]:
        """Return zeros as the start; the inputs of the cell are the vectors of the positions, and where these are.

        Args:
            x: (B, L) tokens of texts, (B, channels, height, width) images, or (B, ...) tokens of grids.
        """
        injected = self.head.encode(x)
        positions = self.config.make_positions(injected, causal=self.head.causal)
        return torch.zeros_like(injected), (injected, positions)

    def decode(self, z: Tensor) -> Any:
        """Return predictions or logits.

        Args:
            z: (B, ..., features) state.
        """
        return self.head.decode(z)


class StackedTransformer(PretrainedModel):
    """A stack to compare an `EquilibriumTransformer` with: `depth` blocks with separate weights, one after the other.

    Args:
        config: The sizes; see `StackedTransformer.Config`.
        **fields: Fields that override the config.

    Example:
        >>> model = StackedTransformer(kind="grid", vocab_size=10, num_classes=9, features=16, hidden_features=32)
        >>> model(torch.randint(10, (2, 9, 9))).shape
        torch.Size([2, 9, 9, 9])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractBlockConfig):
        """A stack of modern Transformer blocks."""

        depth: int = 6
        """Number of blocks, each with weights of its own."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_count("depth", self.depth)

    def __init__(self, config: StackedTransformer.Config | None = None, **fields: Any) -> None:
        super().__init__()
        self.config = config = StackedTransformer.Config.resolve(config, fields)
        self.head = config.make_head()
        self.blocks = nn.ModuleList(config.make_block() for _ in range(config.depth))

    def forward(self, x: Tensor) -> Any:
        """Return predictions or logits.

        Args:
            x: (B, L) tokens of texts, (B, channels, height, width) images, or (B, ...) tokens of grids.
        """
        h = self.head.encode(x)
        positions = self.config.make_positions(h, causal=self.head.causal)
        for block in self.blocks:
            h = block(h, positions)
        return self.head.decode(h)
