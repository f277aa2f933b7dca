"""The published configurations of Transformers for texts (Table 1 and the scripts of `locuslab/deq`)."""

from __future__ import annotations

from typing import Any

from .explicit import TiedTransformer
from .language_model import DEQTransformerLM

_WT103 = {
    "num_words": 267_735,
    "num_heads": 10,
    "cutoffs": (20_000, 40_000, 200_000),
    "div_value": 4.0,
    # Counted as in the official code, which has two parameters for each projection, those of the tails on one storage.
    "tied": "none",
}
_WT103_DEQ = {
    **_WT103,
    "features": 700,
    "hidden_features": 48_000,
    "memory_length": 150,
    "window": 1000,
    "dropout": 0.05,
}
_WT103_JR = {**_WT103_DEQ, "memory_length": 300, "dropout": 0.06, "attention_dropout": 0.01}

# Not the paper's: small enough for a laptop.
_WT2_CPU = {
    "num_words": 33_278,
    "num_heads": 4,
    "cutoffs": (2_000, 10_000),
    "div_value": 4.0,
    "memory_length": 64,
    # 1/√128: word vectors and what is injected have a variance of one. With smaller ones, training stays for hundreds
    # of steps where all positions predict the frequencies of words.
    "std": 0.09,
}
_WT2_CPU_DEQ = {**_WT2_CPU, "features": 128, "hidden_features": 512}

DEQ_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "wt103": _WT103_DEQ,
    "wt103-jr": _WT103_JR,
    # The one of Table 1 that diverged.
    "wt103-pre": {**_WT103_DEQ, "norm": "pre"},
    "wt103-pre-jr": {**_WT103_JR, "norm": "pre"},
    "wt2-cpu": _WT2_CPU_DEQ,
}
TRANSFORMER_XLS: dict[str, dict[str, Any]] = {
    # Paper: 18 layers and 110 million parameters; it gives no widths, and these are ours. Dropout is that of
    # Transformer-XL's own script.
    "wt103": {
        **_WT103,
        "num_layers": 18,
        "features": 600,
        "hidden_features": 2540,
        "memory_length": 150,
        "dropout": 0.1,
    },
    # As many parameters as the DEQ: depth at the price of width.
    "wt2-cpu": {**_WT2_CPU, "num_layers": 4, "features": 96, "hidden_features": 350},
}
TIED_TRANSFORMERS: dict[str, dict[str, Any]] = {
    # Not in the paper: as deep as its regularized DEQ has evaluations.
    "wt103": {**_WT103_DEQ, "depth": 12},
    "wt2-cpu": {**_WT2_CPU_DEQ, "depth": 12},
}


def build_tied_transformer(*, depth: int, **options: Any) -> TiedTransformer:
    """Return a tied Transformer from its depth and the arguments of `DEQTransformerLM`."""
    return TiedTransformer(DEQTransformerLM(**options), depth=depth)
