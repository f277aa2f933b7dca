"""`steadeq generate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn

from ...models.transformer import Sampling, Step, generate, vocabulary_size
from ...solvers import AbstractSolver
from ..data import AbstractTextConfig, Vocabulary
from ..data.vocabulary import EOS
from ..errors import InputError, Interrupted, RunError
from ..run.loading import TrainedModel, load_trained
from ..terminal import answer, is_quiet
from ..train import Process
from ..train.adapter import ModelAdapter
from .arguments import parse, positional
from .table import print_table

_TIGHT = 1e-8
"""Tolerance at which --compare checks the tokens: far below what could change one by chance, in double precision."""
_TIGHT_EVALS = 300


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `generate`."""

    run: Path = positional()
    """Folder of the run."""
    prompt: str = ""
    """Words to begin with, separated by spaces as in the text; empty for the beginning of a line."""
    num_tokens: int = 50
    """Number of tokens (words and signs) to draw."""
    temperature: float = 1.0
    """Values below 1 favor likely tokens, values above 1 favor rare ones; 0 always takes the most likely token."""
    top_k: int | None = None
    """Draw from this number of the most likely tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of most likely tokens whose total probability reaches this."""
    allow_unk: bool = False
    """Also draw the token for unknown words, <unk>."""
    seed: int = 0
    """Seed of the draws: the same seed gives the same text."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    max_evals: int | None = None
    """Largest number of evaluations per token; by default the run's."""
    tol: float | None = None
    """Relative residual at which a token's equilibrium is finished; by default the run's."""
    warm_start: bool = True
    """Start each solve at the equilibrium of the token before, and not at zero."""
    stats: bool = False
    """Print one line for each token, with its log-probability and evaluations."""
    compare: bool = False
    """Instead of the text, print how many evaluations the warm start saves and whether it changes the tokens."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function. The file is executed."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda ..."""

    def __post_init__(self) -> None:
        for name, least in (("num_tokens", 1), ("max_evals", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")
        if self.tol is not None and not 0 <= self.tol < 1:
            raise InputError(f"--tol is {self.tol}; it must be in [0, 1).")
        try:
            Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        except ValueError as error:
            raise InputError(f"--{str(error).replace('_', '-')}") from None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Writer:
    """A language model that knows words."""

    model: nn.Module
    solver: AbstractSolver | None
    """The run's solver; None for an explicit network."""
    vocabulary: Vocabulary
    prompt: Tensor
    context: int
    """Number of tokens that the model was trained to read at once."""
    args: Arguments

    def steps(self, *, warm_start: bool, max_evals: int | None = None, tol: float | None = None) -> Iterator[Step]:
        """Yield tokens, always the same ones."""
        args, solver = self.args, self.solver
        if solver is not None:
            solver = solver.with_max_evals(max_evals or solver.max_evals).with_tol(solver.tol if tol is None else tol)
        return generate(
            self.model,
            self.prompt,
            num_tokens=args.num_tokens,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            generator=torch.Generator().manual_seed(args.seed),
            solver=solver,
            warm_start=warm_start,
            context=self.context,
            forbidden=[
                *([] if args.allow_unk else [self.vocabulary.unknown]),
                # What the model has room for beyond the tokens of the text.
                *range(len(self.vocabulary), vocabulary_size(self.model)),
            ],
        )


def run(arguments: Sequence[str]) -> int:
    """Print tokens as they come, or what the warm start saves."""
    args = parse(Arguments, arguments, command="generate", summary="Write text with a language model, token by token.")
    with Process.join(args.device) as process:
        trained = load_trained(args.run, step=args.step, device=process.device, recipe=args.recipe)
        data, vocabulary = _read_text(args.run, trained)
        has_equilibrium = ModelAdapter(trained.model).has_equilibrium
        for name, default in (("max_evals", None), ("tol", None), ("compare", False)):
            if not has_equilibrium and getattr(args, name) is not default:
                what = f"{args.run} is a run of an explicit network"
                raise InputError(f"{what}: it has no equilibrium and cannot use --{name.replace('_', '-')}.")
        writer = _Writer(
            model=trained.model,
            solver=trained.config.evaluation_solver if has_equilibrium else None,
            vocabulary=vocabulary,
            prompt=torch.tensor(_encode(args.prompt, vocabulary), device=process.device),
            context=data.length,
            args=args,
        )
        if args.compare:
            _compare(writer)
        else:
            _write(writer)
    return 0


def _read_text(path: Path, trained: TrainedModel) -> tuple[AbstractTextConfig, Vocabulary]:
    """Return the text that a run was trained on, and the tokens of its numbers."""
    data = trained.config.data
    if not isinstance(data, AbstractTextConfig):
        raise InputError(f"{path} is a run on {data.name}, which is not text, so it cannot generate tokens.")
    vocabulary = data.vocabulary()
    size = vocabulary_size(trained.model)
    if len(vocabulary) > size:
        raise InputError(
            f"The model of {path} has {size} tokens, and {data.name} has {len(vocabulary)} here: it was trained on "
            "another text."
        )
    if trained.identity is not None:
        trained.identity.check_vocabulary(vocabulary.digest(), path)
    return data, vocabulary


def _encode(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """Return the numbers of the prompt's words, with `<eos>` between lines; warn of words that have none."""
    words = f" {EOS} ".join(prompt.splitlines()).split() or [EOS]
    unknown = dict.fromkeys(word for word in words if word not in vocabulary)
    if unknown:
        print(f"steadeq: not in the vocabulary, and read as <unk>: {', '.join(unknown)}", file=sys.stderr)
    return vocabulary.encode(words)


def _write(writer: _Writer) -> None:
    """Print tokens as they come, and at the end what they cost."""
    args, eos = writer.args, writer.vocabulary.eos
    steps: list[Step] = []
    is_inside = False
    begin = time.perf_counter()
    try:
        for step in writer.steps(warm_start=args.warm_start, max_evals=args.max_evals, tol=args.tol):
            steps.append(step)
            token = writer.vocabulary.tokens[step.token]
            if args.stats:
                evals = "" if step.num_evals is None else f"\t{step.num_evals}"
                print(f"{token}\t{step.log_probability:.4f}{evals}", flush=True)
            else:
                text = "\n" if step.token == eos else f" {token}" if is_inside else token
                is_inside = step.token != eos
                print(text, end="", flush=True)
    except RuntimeError as error:
        raise RunError(str(error)) from error
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped after {len(steps)} of {args.num_tokens} tokens.") from None
    finally:
        if is_inside:
            print(flush=True)
    seconds = time.perf_counter() - begin
    effort = "" if steps[0].num_evals is None else f", {_evals(steps):.2f} evaluations per token"
    if not is_quiet():
        print(f"{len(steps)} tokens{effort}, {seconds / len(steps):.3g} seconds per token", file=sys.stderr)
    tokens = [
        {"token": writer.vocabulary.tokens[s.token], "log_probability": s.log_probability, "num_evals": s.num_evals}
        for s in steps
    ]
    answer({"tokens": tokens, "seconds_per_token": seconds / len(steps)})


def _compare(writer: _Writer) -> None:
    """Print evaluations from both starts, at the tolerance of the run and at a tight one."""
    args, solver = writer.args, writer.solver
    assert solver is not None
    rows = []
    for tol, max_evals in ((solver.tol if args.tol is None else args.tol, args.max_evals), (_TIGHT, _TIGHT_EVALS)):
        cold, warm = (list(writer.steps(warm_start=is_warm, max_evals=max_evals, tol=tol)) for is_warm in (False, True))
        num_same = sum(1 for _ in takewhile(lambda pair: pair[0].token == pair[1].token, zip(cold, warm, strict=True)))
        same = "all" if num_same == len(cold) else f"the first {num_same}"
        saved = 1 - _evals(warm) / _evals(cold)
        rows.append([f"{tol:g}", f"{_evals(cold):.2f}", f"{_evals(warm):.2f}", f"{saved:.1%}", same])
        # In single precision the tight tolerance is out of reach.
        writer.model.double()
    columns = ["tol", "evaluations per token from zero", "from the last equilibrium", "saved", "same tokens"]
    print_table(columns, rows, title=f"{args.num_tokens} tokens of {args.run}")


def _evals(steps: Sequence[Step]) -> float:
    return mean(step.num_evals or 0 for step in steps)
