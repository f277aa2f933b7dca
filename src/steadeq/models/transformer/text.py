"""What language models take and return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ...nn import AdaptiveSoftmax

Memory = tuple[Tensor, ...]
"""What a model keeps of the words before, each part (B, M, ...) and without a graph."""


class Segment(NamedTuple):
    """Words to go on with."""

    words: Tensor
    """(B, L) numbers of words."""
    memory: Memory | None = None
    """What the model returned for the words before these, if there were any."""

    @classmethod
    def of(cls, x: Tensor | Segment) -> Segment:
        """Return the segment of words that have none before them, or the segment itself."""
        return x if isinstance(x, Segment) else cls(x)


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """What a language model says about the words that follow.

    Probabilities are computed on demand, as a table over all words is large and training needs one entry in each row.
    """

    hidden: Tensor
    """(B, L, features) of the positions."""
    softmax: AdaptiveSoftmax
    """Turns features into probabilities."""
    memory: Memory | None
    """What the model needs to go on with the words after these."""

    def losses(self, words: Tensor) -> Tensor:
        """Return the (B, L) negative log-likelihoods of the words that followed.

        Args:
            words: (B, L): at each position, the word after it.
        """
        return self.softmax(self.hidden, words)

    def log_probabilities(self) -> Tensor:
        """Return the (B, L, words) logarithms of the probabilities of all words."""
        return self.softmax.log_probabilities(self.hidden)
