"""Write text with a language model, token by token."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._internal.trees import map_tensors
from ..._internal.validation import check_count
from ...nn import AdaptiveSoftmax
from ...solvers import AbstractSolver
from .predictions import Predictions

PROMPT_SEGMENT = 64
"""Number of tokens of the prompt that are read at once."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Which tokens may come next, and how likely they are.

    Example:
        >>> sampling = Sampling(top_k=2, forbidden=(0,))
        >>> sampling.probabilities(torch.tensor([0.4, 0.1, 0.2, 0.3]).log())
        tensor([0.0000, 0.0000, 0.4000, 0.6000], dtype=torch.float64)
    """

    temperature: float = 1.0
    """Logarithms of probabilities are divided by it; at 0 the most likely token is certain."""
    top_k: int | None = None
    """Draw from this number of the most likely tokens; by default from all."""
    top_p: float | None = None
    """Draw from the smallest set of most likely tokens whose total probability reaches this; by default from all."""
    forbidden: tuple[int, ...] = ()
    """Tokens that are never drawn; the other fields apply to the remaining tokens."""

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature is {self.temperature!r}; it must be a finite number >= 0.")
        if self.top_k is not None:
            check_count("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p!r}; it must be in (0, 1].")

    def probabilities(self, log_probabilities: Tensor) -> Tensor:
        """Return the (vocabulary,) probabilities to draw from, in double precision.

        Args:
            log_probabilities: (vocabulary,) logarithms of the model's probabilities.

        Raises:
            ValueError: A forbidden token does not exist, or all are forbidden.
            RuntimeError: The model's probabilities are not numbers.
        """
        vocab_size = len(log_probabilities)
        for token in self.forbidden:
            if not 0 <= token < vocab_size:
                raise ValueError(f"forbidden has {token}; tokens are numbered from 0 to {vocab_size - 1}.")
        if len(set(self.forbidden)) == vocab_size:
            raise ValueError("forbidden has all tokens; at least one must be allowed.")
        if log_probabilities.isnan().any():
            raise RuntimeError(
                "The model's probabilities are not numbers: its equilibrium or its weights are not finite."
            )
        scores = log_probabilities.double().clone()
        scores[list(self.forbidden)] = -torch.inf
        ordered, tokens = scores.sort(descending=True, stable=True)
        if self.temperature == 0:
            return torch.zeros_like(scores).index_fill(0, tokens[:1], 1.0)
        # Differences to the best score first: very low temperatures would make all scores infinite.
        ordered = (ordered - ordered[0]) / self.temperature
        if self.top_k is not None:
            ordered[self.top_k :] = -torch.inf
        if self.top_p is not None:
            kept = ordered.softmax(dim=0)
            # A token stays as long as those before it have less than top_p, so that the first one always does.
            ordered[kept.cumsum(dim=0) - kept >= self.top_p] = -torch.inf
        return torch.zeros_like(scores).index_copy(0, tokens, ordered.softmax(dim=0))

    def draw(self, log_probabilities: Tensor, generator: torch.Generator | None = None) -> int:
        """Return a token.

        Args:
            log_probabilities: (vocabulary,) logarithms of the model's probabilities.
            generator: A CPU generator. All draws are made on the CPU, so that a seed gives the same text on every
                device.
        """
        probabilities = self.probabilities(log_probabilities.cpu())
        if self.temperature == 0:
            return int(probabilities.argmax())
        return int(torch.multinomial(probabilities, 1, generator=generator))


@dataclass(frozen=True, kw_only=True)
class Step:
    """A token that was drawn."""

    token: int
    """Number of the token."""
    log_probability: float
    """Logarithm of the probability that the model gave it, whatever it was drawn from."""
    num_evals: int | None
    """Evaluations of the solve that led to it; None for explicit networks."""


def generate(
    model: nn.Module,
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
    context: int = 64,
) -> Iterator[Step]:
    """Yield tokens that follow a prompt, each as soon as it is drawn.

    If the model takes a carry, each token is a segment of its own that sees what is carried from the tokens before it:
    a prompt that is longer than the model's memory scrolls out of it, and a model without memory sees the last token
    only. Any other model reads the latest tokens again for each token. The mode of the model does not change: call
    `eval()` first, unless you want dropout.

    A warm start saves evaluations where the equilibria of neighboring tokens are near each other, and can cost some
    where they are not. If there is only one equilibrium, the predictions stay the same up to the tolerance. A model
    without regularization may have several, and then the start decides.

    Args:
        model: A language model: `model(tokens)`, or `model(tokens, carry)` if `takes_carry` is true, returns
            `Predictions`. If it has a method `solve`, that is used, and its states are (B, L, ...).
        prompt: (P,) tokens to begin with, at least one.
        num_tokens: Number of tokens to draw.
        temperature: Divides the logarithms of probabilities; 0 always takes the most likely token.
        top_k: Draw from this number of the most likely tokens; by default from all.
        top_p: Draw from the smallest set of most likely tokens whose total probability reaches this; by default from
            all.
        generator: A CPU generator, for repeatable draws.
        solver: Solver to use instead of the layer's own.
        warm_start: Whether a position's solve starts at its last equilibrium, or a new one's at the equilibrium of the
            position before, and not at zero.
        forbidden: Tokens that are never drawn.
        context: Number of tokens that a model without a carry reads for each new token, ideally as many as in training.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> from steadeq.models import DEQTransformerLM
        >>> model = DEQTransformerLM(vocab_size=100, features=16, num_heads=2, hidden_features=32).eval()
        >>> steps = generate(model, torch.tensor([3, 1, 4]), num_tokens=5, generator=torch.Generator().manual_seed(0))
        >>> len([step.token for step in steps])
        5
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, forbidden=tuple(forbidden))
    check_count("num_tokens", num_tokens, minimum=0)
    check_count("context", context)
    if prompt.ndim != 1 or not len(prompt) or prompt.is_floating_point():
        raise ValueError(
            f"prompt is {prompt.dtype} of shape {tuple(prompt.shape)}; it must be a vector of at least one token."
        )
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(f"generator is on {generator.device}; it must be on the CPU, where tokens are drawn.")
    vocab_size = vocabulary_size(model)
    if solver is not None and not hasattr(model, "solve"):
        raise ValueError(f"solver is {solver}, but {type(model).__name__} is an explicit network: leave it out.")
    for token in (int(prompt.min()), int(prompt.max())):
        if not 0 <= token < vocab_size:
            raise ValueError(f"prompt has the token {token}; tokens are numbered from 0 to {vocab_size - 1}.")
    takes_carry = bool(getattr(model, "takes_carry", False))
    reader = _Reader(model, solver=solver, warm_start=warm_start, context=None if takes_carry else context)
    return _generate(reader, prompt.long()[None], num_tokens, sampling, generator)


def is_language_model(model: nn.Module) -> bool:
    """Return whether a model predicts the next tokens: it ends in a softmax over a vocabulary, as `Predictions` do.

    Args:
        model: Any model.
    """
    return any(isinstance(module, AdaptiveSoftmax) for module in model.modules())


def vocabulary_size(model: nn.Module) -> int:
    """Return how many tokens a language model knows.

    Args:
        model: The language model.

    Raises:
        ValueError: It is not one.
    """
    for module in model.modules():
        if isinstance(module, AdaptiveSoftmax):
            return module.embedding.vocab_size
    raise ValueError(
        f"model is a {type(model).__name__}, which is not a language model: it has no softmax over tokens."
    )


class _Reader:
    """Reads segments of one text, each after those before it.

    Args:
        model: The language model.
        solver: Solver to use instead of the layer's own.
        warm_start: Whether to start at equilibria that are known, if there are any.
        context: Number of the latest tokens that are read anew each time; None for a model that carries on what it
            needs of them.
    """

    def __init__(
        self, model: nn.Module, *, solver: AbstractSolver | None, warm_start: bool, context: int | None
    ) -> None:
        self._model, self._solver, self._warm_start, self._context = model, solver, warm_start, context
        self._solve = getattr(model, "solve", None)
        self._before: Tensor | None = None
        self._carry: Any = None
        self._z: Any = None

    def begin(self, tokens: Tensor) -> None:
        """Take the (1, L) tokens before the first that is asked for, of which there may be none."""
        if self._context is not None:
            self._before = tokens
            return
        for segment in tokens.split(PROMPT_SEGMENT, dim=1):
            if segment.shape[1]:
                self.read(segment)

    def read(self, tokens: Tensor) -> tuple[Predictions, int | None]:
        """Go on with the next (1, L) tokens, and return what follows and the evaluations that it took."""
        num_new = tokens.shape[1]
        if self._context is not None:
            assert self._before is not None
            self._before = tokens = torch.cat([self._before, tokens], dim=1)[:, -self._context :]
        carried = (self._carry,) if self._context is None else ()
        if self._solve is None:
            predictions, num_evals = self._model(tokens, *carried), None
        else:
            z0 = None
            if self._warm_start and self._z is not None:
                z0 = map_tensors(lambda z: _extend(z, num_new)[:, -tokens.shape[1] :], self._z)
            predictions, eq = self._solve(tokens, *carried, z0=z0, solver=self._solver)
            self._z, num_evals = eq.z, int(eq.stats.num_evals[0])
        self._carry = predictions.carry
        return predictions, num_evals


def _extend(z: Tensor, num_new: int) -> Tensor:
    """Return (1, L, ...) states with the last position repeated for those that are new."""
    return torch.cat([z, z[:, -1:].expand(-1, num_new, *z.shape[2:])], dim=1)


@torch.no_grad()
def _generate(
    reader: _Reader, prompt: Tensor, num_tokens: int, sampling: Sampling, generator: torch.Generator | None
) -> Iterator[Step]:
    reader.begin(prompt[:, :-1])
    # The last token of the prompt is read like those that follow, so that each token costs a solve of one position.
    latest = prompt[:, -1:]
    for _ in range(num_tokens):
        predictions, num_evals = reader.read(latest)
        log_probabilities = predictions.log_probabilities()[0, -1]
        token = sampling.draw(log_probabilities, generator)
        latest = prompt.new_tensor([[token]])
        yield Step(token=token, log_probability=float(log_probabilities[token]), num_evals=num_evals)
