"""Encoders and decoders around the blocks, for texts, images and grids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...nn import AdaptiveEmbedding, AdaptiveSoftmax
from ..transformer import Predictions
from .block import RMSNorm


class AbstractHead(nn.Module, ABC):
    """The encoder and the decoder of a network on positions.

    Vectors of positions are (B, ..., features), with as many dimensions between as the positions have axes. They are
    normalized on their way in, so that what is injected has the same size at each position, and on their way out.

    Args:
        features: Number of features of a position.
    """

    causal = False
    """Whether positions must not see those after them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = RMSNorm(features), RMSNorm(features)

    def encode(self, x: Tensor) -> Tensor:
        """Return the vectors of the positions of a batch."""
        return self.norm_in(self.embed(x))

    def decode(self, z: Tensor) -> Any:
        """Return the output at a state."""
        return self.predict(self.norm_out(z))

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Return vectors of the positions of a batch, which need not be normalized."""

    @abstractmethod
    def predict(self, z: Tensor) -> Any:
        """Return the output for normalized vectors of positions."""


class LanguageHead(AbstractHead):
    """Maps (B, L) tokens to `Predictions`, with an adaptive softmax that shares the token vectors.

    Args:
        features: Number of features of a position.
        vocab_size: Size of the vocabulary, whose tokens are numbered by frequency.
        cutoffs: First tokens of all clusters of rarer tokens but the first.
        div_value: Factor by which the features of a cluster are fewer than those of the cluster before.
    """

    causal = True

    def __init__(self, features: int, *, vocab_size: int, cutoffs: Sequence[int], div_value: float) -> None:
        super().__init__(features)
        # Logits of normalized vectors then have a variance of one.
        std = features**-0.5
        embedding = AdaptiveEmbedding(vocab_size, features, cutoffs=cutoffs, div_value=div_value, std=std)
        self.softmax = AdaptiveSoftmax(embedding, std=std)

    def embed(self, x: Tensor) -> Tensor:
        """Return the vectors of (B, L) tokens."""
        return self.softmax.embedding(x)

    def predict(self, z: Tensor) -> Predictions:
        """Return predictions for (B, L, features) vectors."""
        return Predictions(hidden=z, softmax=self.softmax, carry=None)


class ImageHead(AbstractHead):
    """Maps (B, channels, height, width) images, cut into patches, to the logits of classes.

    Args:
        features: Number of features of a position.
        image_channels: Number of channels of the images.
        patch_size: Height and width of a patch.
        image_size: Height and width of images, for learned position vectors; None for images of any size.
        num_classes: Number of classes.
    """

    def __init__(
        self, features: int, *, image_channels: int, patch_size: int, image_size: int | None, num_classes: int
    ) -> None:
        super().__init__(features)
        self.patches = nn.Conv2d(image_channels, features, patch_size, stride=patch_size)
        self.places = None
        if image_size is not None:
            num_rows = image_size // patch_size
            # About as large as the vectors of the patches of images of variance one.
            self.places = nn.Parameter(torch.empty(num_rows, num_rows, features).normal_(std=0.3))
        self.classes = nn.Linear(features, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return a (B, rows, columns, features) grid of the vectors of patches."""
        size = self.patches.stride[0]
        if any(length % size for length in x.shape[2:]):
            raise ValueError(
                f"The images are {tuple(x.shape[2:])} pixels; both must be multiples of patch_size ({size})."
            )
        vectors = self.patches(x).movedim(1, -1)
        if self.places is None:
            return vectors
        if vectors.shape[1:] != self.places.shape:
            raise ValueError(
                f"The images are {tuple(x.shape[2:])} pixels; height and width must be image_size "
                f"({size * len(self.places)})."
            )
        return vectors + self.places

    def predict(self, z: Tensor) -> Tensor:
        """Return the (B, classes) logits."""
        return self.classes(z.flatten(1, -2).mean(dim=1))


class GridHead(AbstractHead):
    """Maps (B, ...) tokens of grids, such as puzzles or strings, to the logits of the classes of each cell.

    Args:
        features: Number of features of a position.
        vocab_size: Number of tokens.
        num_classes: Number of classes.
    """

    def __init__(self, features: int, *, vocab_size: int, num_classes: int) -> None:
        super().__init__(features)
        self.embedding = nn.Embedding(vocab_size, features)
        self.classes = nn.Linear(features, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the vectors of tokens."""
        return self.embedding(x)

    def predict(self, z: Tensor) -> Tensor:
        """Return the (B, classes, ...) logits, as `torch.nn.functional.cross_entropy` takes them."""
        return self.classes(z).movedim(-1, 1)
