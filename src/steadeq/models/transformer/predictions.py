"""What language models return, and what they carry from one segment of a text to the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...nn import AdaptiveSoftmax

Carry = tuple[Tensor, ...]
"""What a model remembers of earlier tokens: tensors of shape (B, M, ...), without a graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Predictions of a language model for the next tokens.

    Probabilities are computed on demand, as a table over the whole vocabulary is large and training needs one entry in
    each row.
    """

    hidden: Tensor
    """(B, L, features) vectors of the positions."""
    softmax: AdaptiveSoftmax
    """The module that turns these vectors into probabilities."""
    carry: Carry | None
    """State that the model needs for the tokens after these, or None if it has no memory."""

    def losses(self, tokens: Tensor) -> Tensor:
        """Return the (B, L) negative log-likelihoods of the tokens that followed.

        Args:
            tokens: (B, L) targets: at each position, the token that follows.
        """
        return self.softmax(self.hidden, tokens)

    def log_probabilities(self) -> Tensor:
        """Return the (B, L, vocabulary) logarithms of the probabilities of all tokens."""
        return self.softmax.log_probabilities(self.hidden)


def extend_carry(carry: Carry | None, present: Carry, *, length: int) -> Carry | None:
    """Return the last positions of past and present, without a graph.

    Args:
        carry: What was carried from the segments before, if anything was.
        present: What is new, part by part (B, L, ...).
        length: Number of positions to keep; None is returned for 0.
    """
    if length == 0:
        return None
    new = [part.detach() for part in present]
    if carry is not None:
        new = [torch.cat([old, part], dim=1) for old, part in zip(carry, new, strict=True)]
    return tuple(part[:, -length:] for part in new)
