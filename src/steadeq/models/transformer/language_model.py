"""The DEQ-Transformer (section 5.2): one cell with memory, solved to its fixed point."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...adjoint import AbstractAdjoint, Implicit
from ...nn import DEQ, AdaptiveEmbedding, AdaptiveSoftmax
from ...nn.adaptive_softmax import Tying
from ...solvers import GMRES, AbstractSolver, Anderson
from ...solvers.base import check_count
from ..base import AbstractEquilibriumModel
from .cell import Norm, TransformerCell
from .dropout import TransformerDropout
from .generation import Step, generate
from .text import Memory, Predictions, Segment


class DEQTransformerLM(AbstractEquilibriumModel):
    """A language model whose depth is the equilibrium of one Transformer cell.

    Words become vectors, and these are injected into queries, keys and values of the cell. The equilibria of a segment
    are the memory of the next one.

    Args:
        num_words: Size of the vocabulary, words numbered by frequency.
        features: Of a position.
        num_heads: Of the attention.
        head_features: Of each head; by default features / num_heads.
        hidden_features: Inside the map of positions.
        norm: Where the normalizations are, see `TransformerCell`.
        weight_norm: Whether the cell has normalized weights.
        memory_length: How many positions of the past are kept; 0 for none.
        window: How many positions a position sees, itself included; by default all.
        cutoffs: First words of all clusters of rarer words but the first, see `AdaptiveEmbedding`.
        div_value: By how much the features of a cluster are fewer than those of the one before.
        tied: Which projections embedding and softmax share, see `AdaptiveSoftmax`; they always share their tables.
        dropout: Probability of a zero, of masks that are the same for all positions and the whole solve.
        attention_dropout: Probability that an attention weight is dropped, for the whole solve.
        std: Of the initial entries of tables, projections and injection.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.

    Example:
        >>> model = DEQTransformerLM(num_words=100, features=16, num_heads=2, hidden_features=32, memory_length=4)
        >>> words = torch.randint(100, (2, 6))
        >>> predictions, solution = model(words)
        >>> predictions.log_probabilities().shape
        torch.Size([2, 6, 100])
        >>> following, solution = model(Segment(torch.randint(100, (2, 6)), predictions.memory))
    """

    def __init__(
        self,
        *,
        num_words: int,
        features: int = 700,
        num_heads: int = 10,
        head_features: int | None = None,
        hidden_features: int = 48_000,
        norm: Norm = "post",
        weight_norm: bool = True,
        memory_length: int = 150,
        window: int | None = None,
        cutoffs: Sequence[int] = (),
        div_value: float = 1.0,
        tied: Tying = "tails",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        std: float = 0.01,
        solver: AbstractSolver = Anderson(max_evals=30, tol=1e-3),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=30, tol=1e-4, memory=30)),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        check_count("memory_length", memory_length, minimum=0)
        self.memory_length = memory_length
        self.dropout = TransformerDropout(dropout, attention=attention_dropout)
        embedding = AdaptiveEmbedding(num_words, features, cutoffs=cutoffs, div_value=div_value, std=std)
        self.softmax = AdaptiveSoftmax(embedding, tied=tied, std=std)
        cell = TransformerCell(
            features=features,
            num_heads=num_heads,
            head_features=head_features,
            hidden_features=hidden_features,
            norm=norm,
            window=window,
            weight_norm=weight_norm,
        )
        self.injection = nn.Linear(features, 3 * num_heads * cell.attention.head_features)
        nn.init.normal_(self.injection.weight, std=std)
        nn.init.zeros_(self.injection.bias)
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)

    @property
    def cell(self) -> TransformerCell:
        """What is solved."""
        cell = self.layer.cell
        assert isinstance(cell, TransformerCell)
        return cell

    def inject(self, x: Tensor | Segment) -> tuple[Tensor, tuple[Any, ...]]:
        """Start at zero; the cell takes what is injected, what the memory is to it, and the dropout masks."""
        words, memory = Segment.of(x)
        embedded = self.dropout(self.softmax.embedding(words))
        states, injected = (None, None) if memory is None else memory
        mask = self.dropout.draw_encoding_mask(like=embedded)
        shared = self.dropout.prepare(self.cell, like=embedded, memory=states, injected=injected, mask=mask)
        z0 = embedded.new_zeros(embedded.shape)
        return z0, (self.injection(embedded), *shared)

    def read_out(self, z: Tensor) -> Tensor:
        """Return the features that the softmax takes."""
        return self.dropout(z)

    def answer(self, x: Tensor | Segment, z: Tensor, inputs: tuple[Any, ...]) -> Predictions:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return predictions, and the memory of all positions up to the last."""
        past = Segment.of(x).memory
        return Predictions(
            hidden=self.read_out(z),
            softmax=self.softmax,
            memory=remember(past, (z, inputs[0]), length=self.memory_length),
        )

    def generate(
        self,
        prompt: Tensor,
        *,
        num_words: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        solver: AbstractSolver | None = None,
        warm_start: bool = True,
        forbidden: Collection[int] = (),
    ) -> Iterator[Step]:
        """Yield words that follow a prompt, each as soon as it is drawn; see `steadeq.models.transformer.generate`.

        Args:
            prompt: (P,) words to begin with, at least one.
            num_words: How many to draw.
            temperature: Divides the logarithms of probabilities; 0 always takes the most likely word.
            top_k: How many of the most likely words may come; by default all.
            top_p: What the words that may come must reach together, the most likely ones first; by default all may
                come.
            generator: Of the CPU, for the same words again.
            solver: Instead of the layer's own.
            warm_start: Whether a position's solve starts at the equilibrium of the position before, and not at zero.
            forbidden: Words that may not come.
        """
        return generate(
            self,
            prompt,
            num_words=num_words,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
            solver=solver,
            warm_start=warm_start,
            forbidden=forbidden,
        )


def remember(past: Memory | None, present: Memory, *, length: int) -> Memory | None:
    """Return the last positions of past and present, without a graph.

    Args:
        past: What was remembered before.
        present: What is new, part by part (B, L, ...).
        length: How many positions to keep; None is returned for 0.
    """
    if length == 0:
        return None
    new = [part.detach() for part in present]
    if past is not None:
        new = [torch.cat([old, part], dim=1) for old, part in zip(past, new, strict=True)]
    return tuple(part[:, -length:] for part in new)
