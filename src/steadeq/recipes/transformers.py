"""Configs of language models."""

from __future__ import annotations

from dataclasses import dataclass

from ..models import DEQTransformerLM, TiedTransformer, TransformerXL
from ..models.transformer import Norm
from ..models.transformer.presets import DEQ_TRANSFORMERS, TIED_TRANSFORMERS, TRANSFORMER_XLS, build_tied_transformer
from ..nn.adaptive_softmax import Tying
from ..train import AbstractModelConfig
from ..train.checks import check_at_least, check_fraction, check_positive


@dataclass(frozen=True, kw_only=True)
class AbstractTransformerModel(AbstractModelConfig):
    """What all language models have."""

    num_words: int = 267_735
    """Size of the vocabulary."""
    features: int = 700
    """Of a position."""
    num_heads: int = 10
    """Of the attention."""
    head_features: int | None = None
    """Of each head; features / num_heads if not given."""
    hidden_features: int = 48_000
    """Inside the map of positions."""
    norm: Norm = "post"
    """Where the normalizations are; pre is the official code's, pre-textbook what its name says."""
    weight_norm: bool = True
    """Whether the cell has normalized weights."""
    memory_length: int = 150
    """Positions of the past that are kept."""
    window: int | None = None
    """Positions that a position sees, itself included; all of them if not given."""
    cutoffs: tuple[int, ...] = ()
    """First words of all clusters of rarer words but the first."""
    div_value: float = 1.0
    """By how much the features of a cluster are fewer than those of the one before."""
    tied: Tying = "tails"
    """Projections that embedding and softmax share."""
    dropout: float = 0.0
    """Probability of a zero, for a whole solve."""
    attention_dropout: float = 0.0
    """Probability that an attention weight is dropped, for a whole solve."""
    std: float = 0.01
    """Of the initial entries of tables, projections and injection."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("model", self, 1, "num_words", "features", "num_heads", "hidden_features")
        check_at_least("model", self, 0, "memory_length")
        check_fraction("model", self, "dropout", "attention_dropout")
        check_positive("model", self, "std")


@dataclass(frozen=True, kw_only=True)
class DEQTransformerModel(AbstractTransformerModel):
    """The equilibrium of one Transformer cell."""

    def build(self) -> DEQTransformerLM:
        """Return the network."""
        return DEQTransformerLM(**vars(self))


@dataclass(frozen=True, kw_only=True)
class TransformerXLModel(AbstractTransformerModel):
    """A stack of Transformer layers with memory."""

    num_layers: int = 18
    """Number of layers."""
    weight_norm: bool = False
    """Whether the layers have normalized weights."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        check_at_least("model", self, 1, "num_layers")

    def build(self) -> TransformerXL:
        """Return the network."""
        return TransformerXL(**vars(self))


@dataclass(frozen=True, kw_only=True)
class TiedTransformerModel(AbstractTransformerModel):
    """A Transformer cell that is applied a fixed number of times."""

    depth: int = 12
    """How often the cell is applied."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        check_at_least("model", self, 1, "depth")

    def build(self) -> TiedTransformer:
        """Return the network."""
        return build_tied_transformer(**vars(self))


def deq_transformer(name: str) -> DEQTransformerModel:
    """Return the config of a preset."""
    return DEQTransformerModel(**DEQ_TRANSFORMERS[name])


def transformer_xl(name: str) -> TransformerXLModel:
    """Return the config of a preset."""
    return TransformerXLModel(**TRANSFORMER_XLS[name])


def tied_transformer(name: str) -> TiedTransformerModel:
    """Return the config of a preset."""
    return TiedTransformerModel(**TIED_TRANSFORMERS[name])
