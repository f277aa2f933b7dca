"""A softmax over many tokens that computes few logits (Grave et al., 2017), with the tables of an embedding."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._internal.validation import check_choice
from .adaptive_embedding import AdaptiveEmbedding

Tying = Literal["none", "tails", "all"]


class AdaptiveSoftmax(nn.Module):
    """A softmax over tokens that computes the logits of rarer tokens only for the clusters that occur.

    The head is a softmax over the tokens of the first cluster and one logit for each of the other clusters, the tails.
    The logit of a token of cluster i is the product of the hidden vector, projected to the cluster's features, and of
    the token's row in the table of the embedding, plus a bias. Without cutoffs, this is a softmax over all tokens.

    The embedding is a submodule: a model that also uses it for its input should take it from here and not register it a
    second time. For a softmax with separate tables, pass a separate embedding.

    Args:
        embedding: The embedding whose tables are used.
        tied: Which projections share their parameters with the embedding: those of the "tails", as in Transformer-XL,
            "all" or "none".
        std: Standard deviation of projections and logits of clusters, initially.

    Example:
        >>> embedding = AdaptiveEmbedding(100, 16, cutoffs=[10, 40], div_value=4)
        >>> softmax = AdaptiveSoftmax(embedding)
        >>> hidden, tokens = torch.randn(2, 3, 16), torch.tensor([[3, 99, 12], [0, 0, 40]])
        >>> softmax(hidden, tokens).shape
        torch.Size([2, 3])
        >>> softmax.log_probabilities(hidden).shape
        torch.Size([2, 3, 100])
    """

    def __init__(self, embedding: AdaptiveEmbedding, *, tied: Tying = "tails", std: float = 0.01) -> None:
        super().__init__()
        check_choice("tied", tied, get_args(Tying))
        self.embedding = embedding
        self.tied: Tying = tied
        num_own = {"none": len(embedding.projections), "tails": min(1, len(embedding.projections)), "all": 0}[tied]
        # The first ones: what is tied comes last.
        self.projections = nn.ParameterList(
            nn.Parameter(torch.empty_like(projection).normal_(std=std))
            for projection in list(embedding.projections)[:num_own]
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(high - low)) for low, high in pairwise(embedding.boundaries)
        )
        num_tails, width = embedding.num_clusters - 1, embedding.tables[0].shape[1]
        self.cluster_weight = nn.Parameter(torch.empty(num_tails, width).normal_(std=std)) if num_tails else None
        self.cluster_bias = nn.Parameter(torch.zeros(num_tails)) if num_tails else None

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return the negative log-likelihoods of tokens, each in its place.

        Args:
            hidden: (..., features) vectors.
            tokens: (...) tokens that followed.
        """
        rows, targets = hidden.reshape(-1, hidden.shape[-1]), tokens.reshape(-1)
        partition = self.embedding.partition(targets)
        num_frequent = self.embedding.boundaries[1]
        # What a token is in the head: itself, or its cluster.
        in_head = torch.where(partition.clusters == 0, targets, num_frequent - 1 + partition.clusters)
        losses = -self._head(rows).gather(1, in_head[:, None]).squeeze(1)
        where = partition.split()
        # Clusters without tokens take part too, so that all parameters get gradients in every step.
        parts = [losses.new_zeros(len(where[0]))]
        for cluster in range(1, self.embedding.num_clusters):
            members = targets.index_select(0, where[cluster]) - self.embedding.boundaries[cluster]
            tail = self._tail(rows.index_select(0, where[cluster]), cluster)
            parts.append(-tail.gather(1, members[:, None]).squeeze(1))
        return (losses + partition.merge(parts)).reshape(tokens.shape)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of all tokens, which exponentiated sum to one.

        Args:
            hidden: (..., features) vectors.
        """
        head = self._head(hidden)
        num_frequent = self.embedding.boundaries[1]
        parts = [head[..., :num_frequent]]
        for cluster in range(1, self.embedding.num_clusters):
            position = num_frequent - 1 + cluster
            parts.append(head[..., position : position + 1] + self._tail(hidden, cluster))
        return torch.cat(parts, dim=-1)

    def _head(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities of the tokens of the first cluster, and of all other clusters."""
        weight, bias = self.embedding.tables[0], self.biases[0]
        if self.cluster_weight is not None and self.cluster_bias is not None:
            weight, bias = torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias])
        return _log_softmax(F.linear(self._project(hidden, 0), weight, bias))

    def _tail(self, hidden: Tensor, cluster: int) -> Tensor:
        """Return log-probabilities of the tokens of a cluster, given that it is that cluster."""
        table, bias = self.embedding.tables[cluster], self.biases[cluster]
        return _log_softmax(F.linear(self._project(hidden, cluster), table, bias))

    def _project(self, hidden: Tensor, cluster: int) -> Tensor:
        if not self.embedding.projections:
            return hidden
        owner = self if cluster < len(self.projections) else self.embedding
        return hidden @ owner.projections[cluster]

    def extra_repr(self) -> str:
        """Show what is tied."""
        return f"tied={self.tied!r}"


def _log_softmax(logits: Tensor) -> Tensor:
    # Half precision has two digits after the point for a loss of 8, and autocast on CPUs does not see to that.
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
