"""`steadeq generate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Annotated

import torch
import tyro
from torch import Tensor

from ..data import Vocabulary
from ..data.vocabulary import EOS
from ..errors import InputError, Interrupted
from ..models import AbstractEquilibriumModel, AbstractExplicitModel
from ..models.transformer import Sampling, Step, generate, vocabulary_size
from ..recipes.text import AbstractTextData
from ..train import Process, Run, TrainConfig
from ..train.loading import load_model
from .arguments import parse
from .table import print_table

_TIGHT = 1e-8
"""Tolerance at which --compare checks the words: far below what could change one by chance, in double precision."""
_TIGHT_EVALS = 300


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `generate` takes."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    prompt: str = ""
    """Words to begin with, between spaces as in the text; empty for the beginning of a line."""
    num_words: int = 50
    """How many words to draw."""
    temperature: float = 1.0
    """Below 1 for likely words more often, above 1 for rare ones; 0 always takes the most likely word."""
    top_k: int | None = None
    """Only so many words, the most likely ones, may come."""
    top_p: float | None = None
    """Only the most likely words may come, as few as have this probability together."""
    allow_unk: bool = False
    """Let <unk> come as well."""
    seed: int = 0
    """The same words come again with the same seed."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    max_evals: int | None = None
    """Evaluations that the solve of a word may spend; by default the run's."""
    tol: float | None = None
    """Relative residual at which a word's equilibrium is finished; by default the run's."""
    warm_start: bool = True
    """Start each solve at zero, and not at the equilibrium of the word before."""
    stats: bool = False
    """One line for each word, with its log-probability and evaluations."""
    compare: bool = False
    """Instead of the text, print what the warm start saves and whether it changes the words."""
    device: str = "auto"
    """auto, cpu, cuda ..."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name, least in (("num_words", 1), ("max_evals", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")
        if self.seed >= 1 << 63:
            raise InputError(f"--seed is {self.seed}; it must be less than 2^63.")
        if self.tol is not None and not 0 <= self.tol < 1:
            raise InputError(f"--tol is {self.tol}; it must be in [0, 1).")
        try:
            Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        except ValueError as error:
            raise InputError(f"--{str(error).replace('_', '-')}") from None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Writer:
    """A language model that knows words."""

    model: AbstractEquilibriumModel | AbstractExplicitModel
    config: TrainConfig
    vocabulary: Vocabulary
    prompt: Tensor
    given: Arguments

    def steps(self, *, warm_start: bool, max_evals: int | None = None, tol: float | None = None) -> Iterator[Step]:
        """Yield words, always the same ones."""
        given, forward = self.given, self.config.forward
        is_solved = isinstance(self.model, AbstractEquilibriumModel)
        return generate(
            self.model,
            self.prompt,
            num_words=given.num_words,
            temperature=given.temperature,
            top_k=given.top_k,
            top_p=given.top_p,
            generator=torch.Generator().manual_seed(given.seed),
            solver=forward.build(max_evals or forward.evaluation_budget, tol) if is_solved else None,
            warm_start=warm_start,
            forbidden=() if given.allow_unk else (self.vocabulary.unknown,),
        )


def run(arguments: Sequence[str]) -> int:
    """Print words as they come, or what the warm start saves."""
    given = parse(Arguments, arguments, command="generate", summary="Text from a language model, word by word.")
    run = Run.open(given.run)
    with Process.join(given.device) as process:
        model, config, _ = load_model(run, step=given.step, device=process.device)
        vocabulary = _vocabulary(run, config, model)
        if not isinstance(model, AbstractEquilibriumModel):
            for name, default in (("max_evals", None), ("tol", None), ("compare", False)):
                if getattr(given, name) is not default:
                    raise InputError(
                        f"{run.path} is a run of an explicit network: it has no equilibrium, and no use for "
                        f"--{name.replace('_', '-')}."
                    )
        prompt = torch.tensor(_encode(given.prompt, vocabulary), device=process.device)
        writer = _Writer(model=model, config=config, vocabulary=vocabulary, prompt=prompt, given=given)
        if given.compare:
            _compare(writer)
        else:
            _write(writer)
    return 0


def _vocabulary(run: Run, config: TrainConfig, model: torch.nn.Module) -> Vocabulary:
    if not isinstance(config.data, AbstractTextData):
        raise InputError(f"{run.path} is a run on {config.data.name}, which is no text: it has no words to generate.")
    vocabulary = config.data.vocabulary()
    num_words = vocabulary_size(model)
    if len(vocabulary) != num_words:
        raise InputError(
            f"The model of {run.path} has {num_words} words, and {config.data.name} has {len(vocabulary)} here: it was "
            "trained on another text."
        )
    return vocabulary


def _encode(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """Return the numbers of the prompt's words, with `<eos>` between lines; warn of words that have none."""
    words = f" {EOS} ".join(prompt.splitlines()).split() or [EOS]
    unknown = dict.fromkeys(word for word in words if word not in vocabulary)
    if unknown:
        print(f"steadeq: not in the vocabulary, and read as <unk>: {', '.join(unknown)}", file=sys.stderr)
    return vocabulary.encode(words)


def _write(writer: _Writer) -> None:
    """Print words as they come, and at the end what they cost."""
    given, eos = writer.given, writer.vocabulary.eos
    steps: list[Step] = []
    is_inside = False
    begin = time.perf_counter()
    try:
        for step in writer.steps(warm_start=given.warm_start, max_evals=given.max_evals, tol=given.tol):
            steps.append(step)
            word = writer.vocabulary.words[step.word]
            if given.stats:
                evals = "" if step.num_evals is None else f"\t{step.num_evals}"
                print(f"{word}\t{step.log_probability:.4f}{evals}", flush=True)
            else:
                text = "\n" if step.word == eos else f" {word}" if is_inside else word
                is_inside = step.word != eos
                print(text, end="", flush=True)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped after {len(steps)} of {given.num_words} words.") from None
    finally:
        if is_inside:
            print(flush=True)
    seconds = time.perf_counter() - begin
    effort = "" if steps[0].num_evals is None else f", {_evals(steps):.2f} evaluations per word"
    print(f"{len(steps)} words{effort}, {seconds / len(steps):.3g} seconds per word", file=sys.stderr)


def _compare(writer: _Writer) -> None:
    """Print evaluations from both starts, at the tolerance of the run and at a tight one."""
    given, forward = writer.given, writer.config.forward
    rows = [_compare_at(writer, max_evals=given.max_evals, tol=given.tol)]
    title = f"{given.num_words} words of {given.run}"
    # In single precision the tight tolerance is out of reach.
    writer.model.double()
    rows.append(_compare_at(writer, max_evals=_TIGHT_EVALS, tol=_TIGHT))
    tolerances = (forward.tol if given.tol is None else given.tol, _TIGHT)
    print_table(
        ["tol", "evaluations per word from zero", "from the last equilibrium", "saved", "same words"],
        [[f"{tol:g}", *row] for tol, row in zip(tolerances, rows, strict=True)],
        title=title,
    )


def _compare_at(writer: _Writer, *, max_evals: int | None, tol: float | None) -> list[str]:
    cold, warm = (list(writer.steps(warm_start=is_warm, max_evals=max_evals, tol=tol)) for is_warm in (False, True))
    num_same = sum(1 for _ in takewhile(lambda pair: pair[0].word == pair[1].word, zip(cold, warm, strict=True)))
    same = "all" if num_same == len(cold) else f"the first {num_same}"
    return [f"{_evals(cold):.2f}", f"{_evals(warm):.2f}", f"{1 - _evals(warm) / _evals(cold):.1%}", same]


def _evals(steps: Sequence[Step]) -> float:
    return mean(step.num_evals or 0 for step in steps)
