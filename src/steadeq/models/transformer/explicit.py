"""Transformers of a given depth: Transformer-XL (Dai et al., 2019), and the DEQ's cell applied a number of times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..._internal.validation import check_count
from ...nn import cached_parameters
from ..pretrained import PretrainedModel
from .cell import TransformerCell, TransformerDropout
from .language_model import AbstractTransformerConfig, DEQTransformerLM
from .predictions import Carry, Predictions, extend_carry


class TransformerXL(PretrainedModel):
    """A language model with separate weights per layer, for comparison with the DEQ-Transformer (Table 1).

    A layer is a `TransformerCell` without injection. The inputs of each layer are its memory for the next
    segment, so that a token reaches `num_layers` memories back. Unlike the original, normalizations have no parameters,
    masks of dropout are the same for all positions, and each layer has its own u and v.

    Args:
        config: The sizes; see `TransformerXL.Config`.
        **fields: Fields that override the config.

    Example:
        >>> import torch
        >>> model = TransformerXL(vocab_size=100, num_layers=2, features=16, num_heads=2, hidden_features=32)
        >>> predictions = model(torch.randint(100, (2, 6)))
        >>> predictions.log_probabilities().shape
        torch.Size([2, 6, 100])
        >>> following = model(torch.randint(100, (2, 6)), predictions.carry)
    """

    takes_carry: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractTransformerConfig):
        """A stack of Transformer layers with memory."""

        num_layers: int = 18
        """Number of layers, each with separate weights."""
        features: int = 600
        """Number of features of a position."""
        hidden_features: int = 2540
        """Number of features inside the map of positions."""
        weight_norm: bool = False
        """Normalize the weights of the layers (weight normalization)."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_count("num_layers", self.num_layers)

    def __init__(self, config: TransformerXL.Config | None = None, **fields: Any) -> None:
        super().__init__()
        self.config = config = TransformerXL.Config.resolve(config, fields)
        self.dropout = TransformerDropout(config.dropout, attention=config.attention_dropout)
        self.softmax = config.make_softmax()
        self.layers = nn.ModuleList(config.make_cell() for _ in range(config.num_layers))

    def forward(self, tokens: Tensor, carry: Carry | None = None) -> Predictions:
        """Return predictions, with the carry for the next segment.

        Args:
            tokens: (B, L) tokens.
            carry: Carry that the model returned for the preceding tokens, if any.
        """
        if carry is not None and len(carry) != len(self.layers):
            raise ValueError(f"carry has {len(carry)} parts; it must have one for each of {len(self.layers)} layers.")
        z = self.dropout(self.softmax.embedding(tokens))
        # All layers share it.
        mask = self.dropout.draw_encoding_mask(like=z)
        inputs = []
        with cached_parameters(self.layers):
            for position, layer in enumerate(self.layers):
                inputs.append(z)
                assert isinstance(layer, TransformerCell)
                past = None if carry is None else carry[position]
                z = layer(z, None, *self.dropout.prepare(layer, like=z, memory=past, mask=mask))
        return Predictions(
            hidden=self.dropout(z),
            softmax=self.softmax,
            carry=extend_carry(carry, tuple(inputs), length=self.config.memory_length),
        )


class TiedTransformer(PretrainedModel):
    """The cell of a DEQ-Transformer, applied a given number of times from zero and trained by backpropagation.

    It has the same parameters as the DEQ-Transformer and computes the same as Picard iteration. It carries its last
    states from segment to segment, where the DEQ-Transformer carries equilibria.

    Args:
        config: The sizes; see `TiedTransformer.Config`.
        **fields: Fields that override the config.

    Example:
        >>> import torch
        >>> model = TiedTransformer(vocab_size=100, features=16, num_heads=2, hidden_features=32, depth=6)
        >>> model(torch.randint(100, (2, 6))).log_probabilities().shape
        torch.Size([2, 6, 100])
    """

    takes_carry: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Config(DEQTransformerLM.Config):
        """A Transformer cell that is applied a fixed number of times."""

        depth: int = 12
        """Number of times that the one layer is applied."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_count("depth", self.depth)

    def __init__(self, config: TiedTransformer.Config | None = None, **fields: Any) -> None:
        super().__init__()
        self.config = TiedTransformer.Config.resolve(config, fields)
        # Its solver and adjoint are not used.
        self.model = DEQTransformerLM(DEQTransformerLM.Config.part_of(self.config))

    def forward(self, tokens: Tensor, carry: Carry | None = None) -> Predictions:
        """Return predictions, with the carry for the next segment.

        Args:
            tokens: (B, L) tokens.
            carry: Carry that the model returned for the preceding tokens, if any.
        """
        z, inputs = self.model.encode(tokens, carry)
        with cached_parameters(self.model.cell):
            for _ in range(self.config.depth):
                z = self.model.cell(z, *inputs)
        return self.model.decode(z, injected=inputs[0], carry=carry)

    def extra_repr(self) -> str:
        """Show the depth."""
        return f"depth={self.config.depth}"
