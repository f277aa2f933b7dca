"""`steadeq export`."""

from __future__ import annotations

import importlib.util
import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ...export import OPSET, ExportedModel, ExportError, export_model, kind_of
from ...models import (
    DEQTransformerLM,
    EquilibriumTransformer,
    MDEQClassifier,
    MonotoneDEQ,
    Predictions,
    ResNet,
    StackedTransformer,
    TransformerXL,
)
from ...models.pretrained import is_pretrained
from ...models.transformer import is_language_model, vocabulary_size
from ...nn import DEQ
from ...solvers import AbstractSolver
from ...trees import leaves
from ..config import TrainConfig
from ..data import AbstractDataConfig, read_samples
from ..errors import InputError
from ..files import one_line, write_atomically
from ..recipes import get, names
from ..run.loading import load_model, load_trained
from ..terminal import Work, answer, note
from ..train.adapter import ModelAdapter
from .arguments import parse, positional
from .evaluate import name_data_classes
from .table import format_number, print_table

_PEERS: dict[type, type] = {
    MDEQClassifier.Config: ResNet.Config,
    MonotoneDEQ.Config: ResNet.Config,
    EquilibriumTransformer.Config: StackedTransformer.Config,
    DEQTransformerLM.Config: TransformerXL.Config,
}
"""Which explicit networks equilibrium models are compared with."""

_SECONDS, _ROUNDS = 4.0, 30
"""How long programs are timed, and how often at most."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `export`."""

    run: Path = positional()
    """Folder of a run, or of a model (see `steadeq convert`)."""
    out: Path
    """File to write: .pt2 for torch.export, or .onnx for ONNX; -o for short."""
    evals: int | None = None
    """Number of evaluations that every solve makes; left out for a network without an equilibrium."""
    solver: AbstractSolver | None = None
    """How equilibria are found, instead of the run's or the model's own solver: Picard, Anderson or Broyden."""
    data: AbstractDataConfig | None = None
    """For the folder of a model: data whose samples tell the shape of the input, such as cifar10."""
    shape: tuple[int, ...] = ()
    """Shape of one sample, such as --shape 3 32 32, instead of data; values are then random."""
    batch_size: int = 8
    """Batch size for comparing and timing the file with the model; the file itself takes any batch size."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function. The file is executed."""

    def __post_init__(self) -> None:
        for name in ("evals", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least 1.")
        if any(size < 1 for size in self.shape):
            raise InputError(f"--shape is {self.shape}; all sizes must be at least 1.")


@torch.no_grad()
def run(arguments: Sequence[str]) -> int:
    """Export a model, compare and time it, and write the file."""
    summary = "Write a model whose solves make a fixed number of evaluations as a file for torch.export or ONNX."
    arguments = name_data_classes(["--out" if argument == "-o" else argument for argument in arguments])
    args = parse(Arguments, arguments, command="export", summary=summary)
    _refuse_adaptive_stop(arguments)
    if args.out.is_dir() or not args.out.parent.is_dir():
        raise InputError(f"{args.out} cannot be written; name a file in an existing folder with --out.")
    try:
        kind = kind_of(args.out)
        with Work(f"Exporting {args.run}", 4) as work:
            model, config = _load(args)
            solver = _solver(args, model, config)
            x = _sample(args, model, config)
            work.advance()
            work.doing("tracing the model")
            exported = export_model(model, x, solver=solver)
            work.advance()
            work.doing("making the file")
            content = exported.to_bytes(kind)
    except ExportError as error:
        raise InputError(str(error)) from error
    try:
        with Work(f"Comparing and timing, about {2 * _SECONDS:.0f} seconds"):
            programs = _programs(model, solver, exported, kind, content)
            measured = _compare(programs, x, peer=_find_peer(config, model))
    except Exception as error:  # whatever two runtimes make of dtypes and operators that they do not have
        raise InputError(
            f"{args.out} is not written, because the program does not run on {x.dtype}: {one_line(error)}."
        ) from error
    write_atomically(args.out, content)
    what = type(model).__name__
    if solver is not None:
        what += f", {solver.max_evals} evaluations by {type(solver).__name__}"
    num_threads = torch.get_num_threads()
    title = f"{what}, batch of {args.batch_size}, {num_threads} thread{'s' if num_threads > 1 else ''}"
    rows = [
        [name, f"{1e3 * seconds:.3g}", f"{seconds / measured['eager'][0]:.2f}", format_number(difference, ".1e")]
        for name, (seconds, difference) in measured.items()
    ]
    print_table(["program", "ms", "time / eager", "largest difference"], rows, title=title)
    if kind == "onnx" and "ONNX Runtime" not in programs:
        note("onnxruntime is not installed, so the file was not run: pip install onnxruntime.")
    if getattr(getattr(model, "config", None), "memory_length", 0):
        note("The program has no memory: it reads every sample as the beginning of a text.")
    version = f", opset {OPSET}" if kind == "onnx" else ""
    shape = ", ".join(["batch", *map(str, x.shape[1:])])
    answer({"file": args.out, "programs": {n: {"seconds": s, "difference": d} for n, (s, d) in measured.items()}})
    note(f"Written to {args.out} ({len(content) / 1e6:.1f} MB{version}): x is {x.dtype} of shape ({shape}).")
    return 0


def _refuse_adaptive_stop(arguments: Sequence[str]) -> None:
    """Refuse options of a solver that a fixed number of evaluations leaves no room for."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    if "--solver.tol" in words and words[words.index("--solver.tol") + 1 :][:1] not in (["0"], ["0.0"]):
        raise InputError("--solver.tol cannot be used: an exported program always makes --evals evaluations.")
    if "--solver.max-evals" in words:
        raise InputError("--solver.max-evals cannot be used here; use --evals.")


def _load(args: Arguments) -> tuple[nn.Module, TrainConfig | None]:
    if is_pretrained(args.run):
        model, config = load_model(args.run, step=args.step, recipe=args.recipe).eval(), None
    elif args.data is not None:
        raise InputError(f"{args.run} is not the folder of a model; leave out --data, as a run has its own data.")
    else:
        trained = load_trained(args.run, step=args.step, recipe=args.recipe)
        model, config = trained.model, trained.config
    for part in model.modules():
        if isinstance(part, DEQ):
            part.compiles = False
    return model, config


def _solver(args: Arguments, model: nn.Module, config: TrainConfig | None) -> AbstractSolver | None:
    """Return the solver with the budget that was asked for; None for networks without an equilibrium."""
    if not ModelAdapter(model).has_equilibrium:
        if args.evals is not None or args.solver is not None:
            raise InputError(f"{type(model).__name__} has no equilibrium; export it without --evals and --solver.")
        return None
    if args.evals is None:
        raise InputError("The number of evaluations per solve is missing; pass it as --evals 6.")
    layer = getattr(model, "layer", None)
    own = layer.solver if isinstance(layer, DEQ) else None if config is None else config.evaluation_solver
    solver = args.solver or own
    if solver is None:
        raise InputError(f"{type(model).__name__} has no solver of its own; name one, as in --solver Anderson.")
    return solver.with_max_evals(args.evals).with_tol(0.0)


def _sample(args: Arguments, model: nn.Module, config: TrainConfig | None) -> Tensor:
    """Return the batch that is compared and timed."""
    if args.shape:
        generator = torch.Generator().manual_seed(0)
        shape = (args.batch_size, *args.shape)
        num_tokens = _num_tokens(model)
        if num_tokens is not None:
            return torch.randint(num_tokens, shape, generator=generator)
        return torch.randn(shape, generator=generator).to(_dtype(model))
    data = args.data if config is None else config.data
    if data is None:
        raise InputError(
            f"{args.run} holds a model without data; name a data set, as in --data cifar10, or the shape of a sample, "
            "as in --shape 3 32 32."
        )
    dataset = data.load_split("test")
    indices = torch.arange(args.batch_size) % len(dataset)
    x = read_samples(dataset, indices)[0]
    return x.to(_dtype(model)) if x.is_floating_point() else x


def _dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype that a model computes in."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _num_tokens(model: nn.Module) -> int | None:
    """Return how many tokens there are, for models that take tokens."""
    if is_language_model(model):
        return vocabulary_size(model)
    config: Any = getattr(model, "config", None)
    return config.vocab_size if getattr(config, "kind", None) == "grid" else None


def _programs(
    model: nn.Module, solver: AbstractSolver | None, exported: ExportedModel, kind: str, content: bytes
) -> dict[str, Callable[[Tensor], Any]]:
    """Return what computes the same in several ways; what was exported is read from the content of its file."""
    call: Any = model

    def run_eagerly(x: Tensor) -> Any:
        return _tensors(call(x) if solver is None else call(x, solver=solver))

    programs: dict[str, Callable[[Tensor], Any]] = {"eager": run_eagerly}
    if kind == "pt2":
        programs["torch.export"] = torch.export.load(io.BytesIO(content)).module()
        return programs
    programs["torch.export"] = exported.program.module()
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Only what cannot be repaired.
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        programs["ONNX Runtime"] = lambda x: [torch.from_numpy(y) for y in session.run(None, {"x": x.numpy()})]
    return programs


def _tensors(output: Any) -> Any:
    return output.log_probabilities() if isinstance(output, Predictions) else output


def _compare(
    programs: dict[str, Callable[[Tensor], Any]], x: Tensor, *, peer: tuple[str, nn.Module] | None
) -> dict[str, tuple[float, float | None]]:
    """Return the seconds of each program, and how far it is from eager."""
    expected = leaves(programs["eager"](x))
    differences: dict[str, float | None] = {"eager": None}
    for name, program in programs.items():
        if name != "eager":
            pairs = zip(leaves(program(x)), expected, strict=True)
            differences[name] = max((float((a - b).abs().max()) for a, b in pairs), default=math.nan)
    timed = dict(programs)
    if peer is not None:
        network: Any = peer[1]
        timed[f"{peer[0]}, a stack of layers"] = lambda x: _tensors(network(x))
    return {name: (seconds, differences.get(name)) for name, seconds in _time(timed, x).items()}


def _time(programs: dict[str, Callable[[Tensor], Any]], x: Tensor) -> dict[str, float]:
    """Return the median seconds of each program, one after the other in every round."""
    for program in programs.values():
        program(x)
    taken: dict[str, list[float]] = {name: [] for name in programs}
    begin = time.perf_counter()
    while len(taken["eager"]) < _ROUNDS and (len(taken["eager"]) < 3 or time.perf_counter() - begin < _SECONDS):
        for name, program in programs.items():
            start = time.perf_counter()
            program(x)
            taken[name].append(time.perf_counter() - start)
    return {name: median(seconds) for name, seconds in taken.items()}


def _find_peer(config: TrainConfig | None, model: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the explicit network that is trained on the same data at the same scale, the one nearest in size.

    Its weights are fresh, as time does not depend on them.
    """
    kind = None if config is None else _PEERS.get(type(config.model))
    if config is None or kind is None or config.recipe not in names():
        return None
    scale, size = get(config.recipe).scale, _count(model)
    found: list[tuple[float, str, TrainConfig]] = []
    for name in names():
        recipe = get(name)
        if recipe.scale == scale:
            other = recipe.build()
            if type(other.model) is kind and type(other.data) is type(config.data):
                with torch.device("meta"):
                    found.append((abs(math.log(_count(other.model.build()) / size)), name, other))
    if not found:
        return None
    _, name, other = min(found, key=lambda item: item[0])
    return name, other.model.build().eval()


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
