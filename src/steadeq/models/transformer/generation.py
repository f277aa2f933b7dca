"""Text from a language model, word by word."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...nn import AdaptiveEmbedding, computed_once
from ...solvers import AbstractSolver
from ...solvers.base import check_count
from ..base import AbstractEquilibriumModel
from ..explicit import AbstractExplicitModel
from .sampling import Sampling
from .text import Predictions, Segment

PROMPT_SEGMENT = 64
"""Words of the prompt that are read at once."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A word that was drawn."""

    word: int
    """Its number."""
    log_probability: float
    """Logarithm of the probability that the model gave it, whatever it was drawn from."""
    num_evals: int | None
    """Evaluations of the solve that led to it; None for explicit networks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Reading:
    """What is known after a segment."""

    predictions: Predictions
    z: Tensor | None = None
    num_evals: int | None = None


def generate(
    model: AbstractEquilibriumModel | AbstractExplicitModel,
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
    """Yield words that follow a prompt, each as soon as it is drawn.

    Each word is a segment of its own, with the memory of those before it: a prompt that is longer than the memory
    scrolls out of it, and a model without memory sees the last word only. The mode of the model is left as it is: call
    `eval()` first, unless dropout is wanted.

    A warm start saves evaluations where the equilibria of neighboring words are near each other, and can cost some
    where they are not. It changes the words only by what the tolerance leaves open, if there is one equilibrium; a
    model without regularization may have several, and then the start decides.

    Args:
        model: What gives `Predictions` for a `Segment`.
        prompt: (P,) words to begin with, at least one.
        num_words: How many to draw.
        temperature: Divides the logarithms of probabilities; 0 always takes the most likely word.
        top_k: How many of the most likely words may come; by default all.
        top_p: What the words that may come must reach together, the most likely ones first; by default all may come.
        generator: Of the CPU, for the same words again.
        solver: Instead of the layer's own.
        warm_start: Whether a position's solve starts at the equilibrium of the position before, and not at zero.
        forbidden: Words that may not come.

    Raises:
        ValueError: Some value makes no sense.

    Example:
        >>> from steadeq.models import DEQTransformerLM
        >>> model = DEQTransformerLM(num_words=100, features=16, num_heads=2, hidden_features=32).eval()
        >>> steps = generate(model, torch.tensor([3, 1, 4]), num_words=5, generator=torch.Generator().manual_seed(0))
        >>> len([step.word for step in steps])
        5
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, forbidden=tuple(forbidden))
    check_count("num_words", num_words, 0)
    if prompt.ndim != 1 or not len(prompt) or prompt.is_floating_point():
        raise ValueError(
            f"prompt is {prompt.dtype} of shape {tuple(prompt.shape)}; it must be a vector of at least one word."
        )
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(f"generator is one of {generator.device}; words are drawn on the CPU.")
    if solver is not None and not isinstance(model, AbstractEquilibriumModel):
        raise ValueError(f"{type(model).__name__} is an explicit network: there is nothing to solve with {solver}.")
    vocabulary = vocabulary_size(model)
    for word in (int(prompt.min()), int(prompt.max())):
        if not 0 <= word < vocabulary:
            raise ValueError(f"prompt has the word {word}; words are numbered from 0 to {vocabulary - 1}.")
    return _generate(model, prompt.long()[None], num_words, sampling, generator, solver, warm_start)


def vocabulary_size(model: nn.Module) -> int:
    """Return how many words a language model knows.

    Raises:
        ValueError: It is not one.
    """
    for module in model.modules():
        if isinstance(module, AdaptiveEmbedding):
            return module.num_words
    raise ValueError(f"{type(model).__name__} is not a language model: it has no embedding of words.")


@torch.no_grad()
def _generate(
    model: AbstractEquilibriumModel | AbstractExplicitModel,
    prompt: Tensor,
    num_words: int,
    sampling: Sampling,
    generator: torch.Generator | None,
    solver: AbstractSolver | None,
    warm_start: bool,
) -> Iterator[Step]:
    reading: _Reading | None = None
    for words in prompt[:, :-1].split(PROMPT_SEGMENT, dim=1):
        if words.shape[1]:
            reading = _read(model, words, reading, solver, warm_start)
    # The last word of the prompt is read like those that follow, so that each word costs a solve of one position.
    latest = prompt[:, -1:]
    for _ in range(num_words):
        reading = _read(model, latest, reading, solver, warm_start)
        log_probabilities = reading.predictions.log_probabilities()[0, -1]
        word = sampling.draw(log_probabilities, generator)
        latest = prompt.new_tensor([[word]])
        yield Step(word=word, log_probability=float(log_probabilities[word]), num_evals=reading.num_evals)


def _read(
    model: AbstractEquilibriumModel | AbstractExplicitModel,
    words: Tensor,
    last: _Reading | None,
    solver: AbstractSolver | None,
    warm_start: bool,
) -> _Reading:
    """Go on with the next words.

    Args:
        model: The language model.
        words: (1, L).
        last: What is known of the words before, if there were any.
        solver: Instead of the layer's own.
        warm_start: Whether to start at the last position's equilibrium, if there is one.
    """
    segment = Segment(words, None if last is None else last.predictions.memory)
    if not isinstance(model, AbstractEquilibriumModel):
        return _Reading(predictions=model.output(segment))
    with computed_once(model.layer.cell):
        z0, inputs = model.inject(segment)
        if warm_start and last is not None and last.z is not None:
            z0 = last.z[:, -1:].expand_as(z0)
        z, solution = model.layer(z0, *inputs, solver=solver)
    return _Reading(predictions=model.answer(segment, z, inputs), z=z, num_evals=int(solution.num_evals[0]))
