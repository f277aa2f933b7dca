"""The DEQ-Transformer (section 5.2): one cell with memory, solved to its fixed point."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ..._internal.validation import check_choice, check_count, check_dropout, check_positive
from ...adjoints import AbstractAdjoint, Implicit
from ...equilibrium import Equilibrium
from ...nn import DEQ, AdaptiveEmbedding, AdaptiveSoftmax
from ...nn.adaptive_embedding import check_clusters
from ...nn.adaptive_softmax import Tying
from ...nn.relative_attention import check_attention
from ...solvers import GMRES, AbstractSolver, Anderson
from ..base import AbstractEquilibriumModel, AbstractModelConfig
from .cell import Norm, TransformerCell, TransformerDropout
from .generation import Step, generate
from .predictions import Carry, Predictions, extend_carry


@dataclass(frozen=True, kw_only=True)
class AbstractTransformerConfig(AbstractModelConfig):
    """What all Transformers for texts have."""

    vocab_size: int
    """Number of tokens of the vocabulary, which are numbered from frequent to rare."""
    features: int = 700
    """Number of features of each position (d_model)."""
    num_heads: int = 10
    """Number of heads of the attention."""
    head_features: int | None = None
    """Number of features of each head of the attention; None for features / num_heads."""
    hidden_features: int = 48_000
    """Number of features inside the feed-forward part (d_inner)."""
    norm: Norm = "post"
    """Place of the normalizations: "post" after each part, "pre" as the official code has it, "pre-textbook" before
    each part."""
    weight_norm: bool = True
    """Normalize the weights of the cell (weight normalization)."""
    memory_length: int = 150
    """Number of past positions, from earlier segments, that attention can see too; 0 for none."""
    window: int | None = None
    """Number of positions that a position sees, itself included; None for all of them."""
    cutoffs: tuple[int, ...] = ()
    """Token numbers at which the adaptive embedding and softmax begin a new cluster of rarer tokens; none for a single
    cluster."""
    div_value: float = 1.0
    """Factor by which each cluster of rarer tokens has fewer features than the one before; 1 for the same."""
    tied: Tying = "tails"
    """Projections that embedding and softmax share: "none", those of the rarer tokens ("tails"), or "all". Tables are
    always shared."""
    dropout: float = 0.0
    """Probability that a feature is dropped, at all positions and for a whole solve."""
    attention_dropout: float = 0.0
    """Probability that an attention weight is dropped, for a whole solve."""
    std: float = 0.01
    """Standard deviation of initial embeddings, projections and input injection, and of a cell without weight
    normalization."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "features", "num_heads", "hidden_features"):
            check_count(name, getattr(self, name))
        check_count("memory_length", self.memory_length, minimum=0)
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("tied", self.tied, get_args(Tying))
        check_dropout("dropout", self.dropout)
        check_dropout("attention_dropout", self.attention_dropout)
        check_positive("std", self.std)
        check_attention(
            features=self.features, num_heads=self.num_heads, head_features=self.head_features, window=self.window
        )
        check_clusters(
            vocab_size=self.vocab_size, features=self.features, cutoffs=self.cutoffs, div_value=self.div_value
        )

    def make_softmax(self) -> AdaptiveSoftmax:
        """Return the softmax, freshly initialized, with the embedding as a part of it."""
        embedding = AdaptiveEmbedding(
            self.vocab_size, self.features, cutoffs=self.cutoffs, div_value=self.div_value, std=self.std
        )
        return AdaptiveSoftmax(embedding, tied=self.tied, std=self.std)

    def make_cell(self, *, std: float | None = None) -> TransformerCell:
        """Return a cell, freshly initialized.

        Args:
            std: Standard deviation of weights that are not normalized, whose biases are then zero; by default both are
                torch's.
        """
        cell = TransformerCell(
            features=self.features,
            num_heads=self.num_heads,
            head_features=self.head_features,
            hidden_features=self.hidden_features,
            norm=self.norm,
            window=self.window,
            weight_norm=self.weight_norm,
        )
        for part in cell.modules():
            if std is not None and isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=std)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        return cell


class DEQTransformerLM(AbstractEquilibriumModel):
    """A language model whose depth is the equilibrium of one Transformer cell.

    Tokens become vectors, and these are injected into queries, keys and values of the cell. The equilibria of a segment
    are the memory of the next one: they travel as `Predictions.carry`.

    Args:
        config: The sizes; see `DEQTransformerLM.Config`.
        solver: How to find the equilibrium.
        adjoint: How to differentiate it.
        **fields: Fields that override the config.

    Example:
        >>> model = DEQTransformerLM(vocab_size=100, features=16, num_heads=2, hidden_features=32, memory_length=4)
        >>> predictions = model(torch.randint(100, (2, 6)))
        >>> predictions.log_probabilities().shape
        torch.Size([2, 6, 100])
        >>> following, eq = model.solve(torch.randint(100, (2, 6)), predictions.carry)
        >>> eq.z.shape
        torch.Size([2, 6, 16])
    """

    takes_carry = True

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractTransformerConfig):
        """The equilibrium of one Transformer cell."""

    def __init__(
        self,
        config: DEQTransformerLM.Config | None = None,
        *,
        solver: AbstractSolver = Anderson(max_evals=30, tol=1e-3, causal=True),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=30, tol=1e-4)),  # noqa: B008 (frozen)
        **fields: Any,
    ) -> None:
        super().__init__()
        self.config = config = DEQTransformerLM.Config.resolve(config, fields)
        self.dropout = TransformerDropout(config.dropout, attention=config.attention_dropout)
        self.softmax = config.make_softmax()
        cell = config.make_cell(std=config.std)
        self.injection = nn.Linear(config.features, 3 * config.num_heads * cell.attention.head_features)
        nn.init.normal_(self.injection.weight, std=config.std)
        nn.init.zeros_(self.injection.bias)
        self.layer = DEQ(cell, solver=solver, adjoint=adjoint)

    @property
    def cell(self) -> TransformerCell:
        """The map that is solved."""
        cell = self.layer.cell
        assert isinstance(cell, TransformerCell)
        return cell

    def encode(self, tokens: Tensor, carry: Carry | None = None) -> tuple[Tensor, tuple[Any, ...]]:
        """Start at zero; the cell takes what is injected, keys and values of the memory, and the dropout masks.

        Args:
            tokens: (B, L) tokens.
            carry: Carry that the model returned for the preceding tokens, if any.
        """
        embedded = self.dropout(self.softmax.embedding(tokens))
        states, injected = (None, None) if carry is None else carry
        mask = self.dropout.draw_encoding_mask(like=embedded)
        shared = self.dropout.prepare(self.cell, like=embedded, memory=states, injected=injected, mask=mask)
        z0 = embedded.new_zeros(embedded.shape)
        return z0, (self.injection(embedded), *shared)

    def decode(self, z: Tensor, *, injected: Tensor | None = None, carry: Carry | None = None) -> Predictions:
        """Return predictions, and what is carried on.

        Args:
            z: (B, L, features) state.
            injected: What was injected at these positions; without it, nothing is carried on.
            carry: What was carried from the tokens before these, if there were any.
        """
        new = None if injected is None else extend_carry(carry, (z, injected), length=self.config.memory_length)
        return Predictions(hidden=self.dropout(z), softmax=self.softmax, carry=new)

    def forward(
        self,
        tokens: Tensor,
        carry: Carry | None = None,
        *,
        z0: Tensor | None = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
    ) -> Predictions:
        """Return the predictions at the equilibrium.

        Args:
            tokens: (B, L) tokens.
            carry: Carry that the model returned for the preceding tokens, if any.
            z0: (B, L, features) state to start from, instead of zero.
            solver: Solver for this call instead of the layer's own.
            adjoint: Adjoint for this call instead of the layer's own.
        """
        return self.solve(tokens, carry, z0=z0, solver=solver, adjoint=adjoint)[0]

    def solve(
        self,
        tokens: Tensor,
        carry: Carry | None = None,
        *,
        z0: Tensor | None = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
        states_at: Sequence[int] = (),
    ) -> tuple[Predictions, Equilibrium]:
        """Return the predictions, and the equilibrium that they were decoded from.

        Args:
            tokens: (B, L) tokens.
            carry: Carry that the model returned for the preceding tokens, if any.
            z0: (B, L, features) state to start from, instead of zero.
            solver: Solver for this call instead of the layer's own.
            adjoint: Adjoint for this call instead of the layer's own.
            states_at: Numbers of evaluations whose results are kept as `eq.states`; see `fixed_point`.
        """
        start, inputs = self.encode(tokens, carry)
        start = start if z0 is None else z0
        eq = self._solve_layer(start, inputs, solver=solver, adjoint=adjoint, states_at=states_at)
        return self.decode(eq.z, injected=inputs[0], carry=carry), eq

    def unroll(self, tokens: Tensor, depth: int, carry: Carry | None = None) -> tuple[Predictions, Equilibrium]:
        """Apply the cell a number of times from zero, as a deep network with tied layers would.

        Args:
            tokens: (B, L) tokens.
            depth: How often the cell is applied.
            carry: Carry that the model returned for the preceding tokens, if any.

        Returns:
            The predictions, and the last state as an `Equilibrium`, whose residual is how much the last application
            still moved the state.
        """
        start, inputs = self.encode(tokens, carry)
        eq = self._unroll_layer(start, inputs, depth)
        return self.decode(eq.z, injected=inputs[0], carry=carry), eq

    def generate(
        self,
        prompt: Tensor,
        *,
        num_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        solver: AbstractSolver | None = None,
        warm_start: bool = True,
        forbidden: Collection[int] = (),
    ) -> Iterator[Step]:
        """Yield tokens that follow a prompt, each as soon as it is drawn; see `steadeq.models.transformer.generate`.

        Args:
            prompt: (P,) tokens to begin with, at least one.
            num_tokens: Number of tokens to draw.
            temperature: Divides the logarithms of probabilities; 0 always takes the most likely token.
            top_k: Draw from this number of the most likely tokens; by default from all.
            top_p: Draw from the smallest set of most likely tokens whose total probability reaches this; by default
                from all.
            generator: A CPU generator, for repeatable draws.
            solver: Solver to use instead of the layer's own.
            warm_start: Whether a position's solve starts at the equilibrium of the position before, and not at zero.
            forbidden: Tokens that are never drawn.
        """
        return generate(
            self,
            prompt,
            num_tokens=num_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
            solver=solver,
            warm_start=warm_start,
            forbidden=forbidden,
        )
