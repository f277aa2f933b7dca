"""How the next word is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import RunError
from ...solvers.base import check_count


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Which words may come next, and how likely they are.

    Example:
        >>> sampling = Sampling(top_k=2, forbidden=(0,))
        >>> sampling.probabilities(torch.tensor([0.4, 0.1, 0.2, 0.3]).log())
        tensor([0.0000, 0.0000, 0.4000, 0.6000], dtype=torch.float64)
    """

    temperature: float = 1.0
    """Logarithms of probabilities are divided by it; at 0 the most likely word is certain."""
    top_k: int | None = None
    """Only so many words, the most likely ones, may come; by default all."""
    top_p: float | None = None
    """Only the most likely words may come, as few as have this probability together; by default all."""
    forbidden: tuple[int, ...] = ()
    """Words that may not come; what is said above is about all others."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature is {self.temperature!r}; it must be a finite number >= 0.")
        if self.top_k is not None:
            check_count("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p!r}; it must be in (0, 1].")

    def probabilities(self, log_probabilities: Tensor) -> Tensor:
        """Return the (words,) probabilities to draw from, in double precision.

        Args:
            log_probabilities: (words,) of the model.

        Raises:
            ValueError: A forbidden word does not exist, or all are forbidden.
            RunError: The model's probabilities are not numbers.
        """
        num_words = len(log_probabilities)
        for word in self.forbidden:
            if not 0 <= word < num_words:
                raise ValueError(f"forbidden has {word}; words are numbered from 0 to {num_words - 1}.")
        if len(set(self.forbidden)) == num_words:
            raise ValueError("forbidden has all words; at least one must be allowed.")
        if log_probabilities.isnan().any():
            raise RunError("The model's probabilities are not numbers: its equilibrium or its weights are not finite.")
        scores = log_probabilities.double().clone()
        scores[list(self.forbidden)] = -torch.inf
        ordered, words = scores.sort(descending=True, stable=True)
        if self.temperature == 0:
            return torch.zeros_like(scores).index_fill(0, words[:1], 1.0)
        # Differences to the best score first: very low temperatures would make all scores infinite.
        ordered = (ordered - ordered[0]) / self.temperature
        if self.top_k is not None:
            ordered[self.top_k :] = -torch.inf
        if self.top_p is not None:
            kept = ordered.softmax(dim=0)
            # A word stays as long as those before it have less than top_p, so that the first one always does.
            ordered[kept.cumsum(dim=0) - kept >= self.top_p] = -torch.inf
        return torch.zeros_like(scores).index_copy(0, words, ordered.softmax(dim=0))

    def draw(self, log_probabilities: Tensor, generator: torch.Generator | None = None) -> int:
        """Return a word.

        Args:
            log_probabilities: (words,) of the model.
            generator: Of the CPU, as all draws are made there: a seed stands for one text on all devices.
        """
        probabilities = self.probabilities(log_probabilities.cpu())
        if self.temperature == 0:
            return int(probabilities.argmax())
        return int(torch.multinomial(probabilities, 1, generator=generator))
