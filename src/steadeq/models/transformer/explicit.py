"""Transformers of a given depth: Transformer-XL (Dai et al., 2019), and the DEQ's cell applied a number of times."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ...nn import AdaptiveEmbedding, AdaptiveSoftmax, computed_once
from ...nn.adaptive_softmax import Tying
from ...solvers.base import check_count
from ..explicit import AbstractExplicitModel
from .cell import Norm, TransformerCell
from .dropout import TransformerDropout
from .language_model import DEQTransformerLM, remember
from .text import Predictions, Segment


class TransformerXL(AbstractExplicitModel):
    """A language model of layers with weights of their own, which the DEQ-Transformer is compared with (Table 1).

    A layer is a `TransformerCell` that nothing is injected into. The inputs of each layer are its memory for the next
    segment, so that a word reaches `num_layers` memories back. Unlike the original, normalizations have no parameters,
    masks of dropout are the same for all positions, and each layer has its own u and v.

    Args:
        num_words: Size of the vocabulary, words numbered by frequency.
        num_layers: Number of layers.
        features: Of a position.
        num_heads: Of the attention.
        head_features: Of each head; by default features / num_heads.
        hidden_features: Inside the map of positions.
        norm: Where the normalizations are, see `TransformerCell`.
        weight_norm: Whether the layers have normalized weights.
        memory_length: How many positions of the past are kept; 0 for none.
        window: How many positions a position sees in each layer, itself included; by default all.
        cutoffs: First words of all clusters of rarer words but the first, see `AdaptiveEmbedding`.
        div_value: By how much the features of a cluster are fewer than those of the one before.
        tied: Which projections embedding and softmax share, see `AdaptiveSoftmax`; they always share their tables.
        dropout: Probability of a zero, of masks that are the same for all positions.
        attention_dropout: Probability that an attention weight is dropped.
        std: Of the initial entries of tables and projections.

    Example:
        >>> import torch
        >>> model = TransformerXL(num_words=100, num_layers=2, features=16, num_heads=2, hidden_features=32)
        >>> predictions, _ = model(torch.randint(100, (2, 6)))
        >>> predictions.log_probabilities().shape
        torch.Size([2, 6, 100])
        >>> following, _ = model(Segment(torch.randint(100, (2, 6)), predictions.memory))
    """

    def __init__(
        self,
        *,
        num_words: int,
        num_layers: int = 18,
        features: int = 600,
        num_heads: int = 10,
        head_features: int | None = None,
        hidden_features: int = 2540,
        norm: Norm = "post",
        weight_norm: bool = False,
        memory_length: int = 150,
        window: int | None = None,
        cutoffs: Sequence[int] = (),
        div_value: float = 1.0,
        tied: Tying = "tails",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        std: float = 0.01,
    ) -> None:
        super().__init__()
        check_count("num_layers", num_layers)
        check_count("memory_length", memory_length, minimum=0)
        self.memory_length = memory_length
        self.dropout = TransformerDropout(dropout, attention=attention_dropout)
        embedding = AdaptiveEmbedding(num_words, features, cutoffs=cutoffs, div_value=div_value, std=std)
        self.softmax = AdaptiveSoftmax(embedding, tied=tied, std=std)
        self.layers = nn.ModuleList(
            TransformerCell(
                features=features,
                num_heads=num_heads,
                head_features=head_features,
                hidden_features=hidden_features,
                norm=norm,
                window=window,
                weight_norm=weight_norm,
            )
            for _ in range(num_layers)
        )

    def output(self, x: Tensor | Segment) -> Predictions:
        """Return predictions, and the memory of all positions up to the last."""
        words, memory = Segment.of(x)
        if memory is not None and len(memory) != len(self.layers):
            raise ValueError(f"memory has {len(memory)} parts; it must have one for each of {len(self.layers)} layers.")
        z = self.dropout(self.softmax.embedding(words))
        # Which all layers share.
        mask = self.dropout.draw_encoding_mask(like=z)
        inputs = []
        with computed_once(self.layers):
            for position, layer in enumerate(self.layers):
                inputs.append(z)
                assert isinstance(layer, TransformerCell)
                past = None if memory is None else memory[position]
                z = layer(z, None, *self.dropout.prepare(layer, like=z, memory=past, mask=mask))
        return Predictions(
            hidden=self.dropout(z),
            softmax=self.softmax,
            memory=remember(memory, tuple(inputs), length=self.memory_length),
        )


class TiedTransformer(AbstractExplicitModel):
    """The cell of a DEQ-Transformer, applied a given number of times from zero and trained by backpropagation.

    It has the parameters of the DEQ-Transformer and computes what Picard iteration would. Its memory is that of the
    DEQ-Transformer too, with the last states in the place of equilibria.

    Args:
        model: The DEQ-Transformer, whose solver and adjoint are not used.
        depth: How often the cell is applied.

    Example:
        >>> import torch
        >>> deq = DEQTransformerLM(num_words=100, features=16, num_heads=2, hidden_features=32, memory_length=4)
        >>> predictions, _ = TiedTransformer(deq, depth=6)(torch.randint(100, (2, 6)))
        >>> predictions.log_probabilities().shape
        torch.Size([2, 6, 100])
    """

    def __init__(self, model: DEQTransformerLM, *, depth: int) -> None:
        super().__init__()
        check_count("depth", depth)
        self.model, self.depth = model, depth

    def output(self, x: Tensor | Segment) -> Predictions:
        """Return predictions, and the memory of all positions up to the last."""
        z, inputs = self.model.unroll(x, self.depth)
        return self.model.answer(x, z, inputs)

    def extra_repr(self) -> str:
        """Show the depth."""
        return f"depth={self.depth}"
