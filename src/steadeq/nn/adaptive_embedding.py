"""Embeddings that spend fewer features on rarer tokens (Baevski and Auli, 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Tokens grouped by their clusters."""

    order: Tensor
    """(N,): positions of the tokens of the first cluster, then of the second, and so on, each cluster in order."""
    counts: list[int]
    """Number of tokens in each cluster."""
    clusters: Tensor
    """(N,): the cluster of each token."""

    def split(self) -> tuple[Tensor, ...]:
        """Return, for each cluster, where its tokens are."""
        return self.order.split(self.counts)

    def merge(self, parts: Sequence[Tensor]) -> Tensor:
        """Return results that were computed cluster by cluster in the order of the tokens."""
        return torch.cat(list(parts)).index_select(0, self.order.argsort())


class AdaptiveEmbedding(nn.Module):
    """Token vectors of one size, stored with fewer features for clusters of rarer tokens.

    Tokens are numbered by frequency, the most frequent one first. Cluster i has a table of features / div_value^i
    columns, rounded down, and a linear map without bias to all features. Without cutoffs there is one table and no map.
    All vectors are multiplied by √features, as tables that are also used by a softmax have small entries.

    Args:
        vocab_size: Size of the vocabulary.
        features: Number of features of a token vector.
        cutoffs: First tokens of all clusters but the first.
        div_value: Factor by which each cluster has fewer features than the one before.
        std: Initial standard deviation of all entries.

    Example:
        >>> embedding = AdaptiveEmbedding(100, 16, cutoffs=[10, 40], div_value=4)
        >>> embedding(torch.tensor([[3, 99, 12], [0, 0, 40]])).shape
        torch.Size([2, 3, 16])
        >>> [tuple(table.shape) for table in embedding.tables]
        [(10, 16), (30, 4), (60, 1)]
    """

    def __init__(
        self,
        vocab_size: int,
        features: int,
        *,
        cutoffs: Sequence[int] = (),
        div_value: float = 1.0,
        std: float = 0.01,
    ) -> None:
        super().__init__()
        check_clusters(vocab_size=vocab_size, features=features, cutoffs=cutoffs, div_value=div_value)
        self.vocab_size, self.features, self.div_value = vocab_size, features, div_value
        self.boundaries = [0, *cutoffs, vocab_size]
        widths = [_width(features, div_value, cluster) for cluster in range(len(cutoffs) + 1)]
        sizes = [high - low for low, high in pairwise(self.boundaries)]
        self.tables = nn.ParameterList(_normal(size, width, std=std) for size, width in zip(sizes, widths, strict=True))
        self.projections = nn.ParameterList(_normal(features, width, std=std) for width in widths if cutoffs)

    @property
    def num_clusters(self) -> int:
        """Number of clusters, the one of the most frequent tokens included."""
        return len(self.boundaries) - 1

    def partition(self, tokens: Tensor) -> Partition:
        """Group tokens by their clusters.

        Args:
            tokens: (N,) tokens.
        """
        inner = torch.tensor(self.boundaries[1:-1], device=tokens.device, dtype=tokens.dtype)
        clusters = torch.bucketize(tokens, inner, right=True)
        counts = torch.bincount(clusters, minlength=self.num_clusters).tolist()
        return Partition(order=clusters.argsort(stable=True), counts=counts, clusters=clusters)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors of tokens, in a new last dimension."""
        flat = tokens.reshape(-1)
        if not self.projections:
            vectors = F.embedding(flat, self.tables[0])
        elif torch.compiler.is_compiling():
            vectors = self._embed_by_masks(flat)
        else:
            partition = self.partition(flat)
            # Clusters without tokens take part too, so that all parameters get gradients in every step.
            vectors = partition.merge(
                [
                    F.linear(F.embedding(flat.index_select(0, rows) - low, table), projection)
                    for rows, low, table, projection in zip(
                        partition.split(), self.boundaries[:-1], self.tables, self.projections, strict=True
                    )
                ]
            )
        return vectors.reshape(*tokens.shape, self.features) * math.sqrt(self.features)

    def _embed_by_masks(self, flat: Tensor) -> Tensor:
        """Look up each token in every table and keep what is its own: no graph can hold how many there are of each."""
        total = torch.zeros((), dtype=self.tables[0].dtype, device=flat.device)
        for (low, high), table, projection in zip(
            pairwise(self.boundaries), self.tables, self.projections, strict=True
        ):
            own = F.linear(F.embedding((flat - low).clamp(0, high - low - 1), table), projection)
            total = torch.where(((flat >= low) & (flat < high)).unsqueeze(1), own, total)
        return total

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.vocab_size}, {self.features}, cutoffs={self.boundaries[1:-1]}, div_value={self.div_value:g}"


def check_clusters(*, vocab_size: int, features: int, cutoffs: Sequence[int], div_value: float) -> None:
    """Refuse sizes that `AdaptiveEmbedding` cannot have.

    Raises:
        ValueError: Naming the first one.
    """
    if any(low >= high for low, high in pairwise([0, *cutoffs, vocab_size])):
        raise ValueError(f"cutoffs is {tuple(cutoffs)}; they must increase strictly between 0 and {vocab_size} tokens.")
    if not div_value >= 1:
        raise ValueError(f"div_value is {div_value!r}; it must be at least 1.")
    if _width(features, div_value, len(cutoffs)) < 1:
        raise ValueError(
            f"div_value is {div_value:g}, so that the last of {len(cutoffs) + 1} clusters would have {features} / "
            f"{div_value:g}^{len(cutoffs)} features, which is less than one."
        )


def _width(features: int, div_value: float, cluster: int) -> int:
    return int(features // div_value**cluster)


def _normal(rows: int, columns: int, *, std: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns).normal_(std=std))
