"""Exported models as files, with what is known about them inside."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..solvers import AbstractSolver
from ._program import ExportError, trace

Format = Literal["pt2", "onnx"]
"""Kind of file that a model is exported to: a program of PyTorch, or ONNX."""

OPSET = 18
"""Version of the operators of ONNX that files are written in."""

_NEEDED = ("onnx", "onnxscript")
_METADATA = "steadeq.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedModel:
    """A model as a graph of tensor operations, without Python in it."""

    program: torch.export.ExportedProgram
    """The graph with its weights; `program.module()` is callable."""
    metadata: dict[str, Any]
    """Description of the file: the model's class, the solver and its budget, names and shapes of the inputs."""

    def to_bytes(self, kind: Format) -> bytes:
        """Return the content of a file.

        Args:
            kind: "pt2" for `torch.export.load`, "onnx" for ONNX Runtime and others.

        Raises:
            ExportError: ONNX lacks an operation of the model, or the packages that write ONNX are not installed.
        """
        return self._to_pt2() if kind == "pt2" else self._to_onnx()

    def save(self, path: str | Path) -> None:
        """Write a file, whose ending says which kind it is: .pt2 or .onnx.

        Args:
            path: The file; an existing file is overwritten.

        Raises:
            ExportError: The ending is another one; see also `to_bytes`.
        """
        path = Path(path)
        path.write_bytes(self.to_bytes(kind_of(path)))

    def _to_pt2(self) -> bytes:
        buffer = io.BytesIO()
        with _quiet():
            torch.export.save(self.program, buffer, extra_files={_METADATA: json.dumps(self.metadata)})
        return buffer.getvalue()

    def _to_onnx(self) -> bytes:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ExportError(
                f"ONNX files need {' and '.join(missing)}: pip install {' '.join(missing)}; a .pt2 file needs nothing "
                "more."
            )
        try:
            with _quiet():
                written = torch.onnx.export(
                    self.program,
                    dynamo=True,
                    opset_version=OPSET,
                    verbose=False,
                    input_names=list(self.metadata["inputs"]),
                )
                assert written is not None
                model = written.model_proto
        except Exception as error:
            raise ExportError(
                f"{self.metadata['model']} cannot be written as ONNX, because ONNX lacks one of its operations "
                f"({_reason(error)}); write a .pt2 file instead."
            ) from error
        for node in model.graph.node:
            # Lines of code, by their places on this machine.
            del node.metadata_props[:]
        for name, value in {**self.metadata, "opset": OPSET}.items():
            model.metadata_props.add(key=f"steadeq.{name}", value=json.dumps(value))
        return model.SerializeToString()


def export_model(
    model: nn.Module, x: Tensor | tuple[Tensor, ...], *, solver: AbstractSolver | None = None
) -> ExportedModel:
    """Return a model as a graph of tensor operations, in which every solve makes the same number of evaluations.

    The graph returns what the model returns with the same solver, up to rounding. Language models return (B, L,
    vocabulary) log-probabilities and have no memory: each sample begins a text. Everything that depends only on weights
    is computed at export and stored as a constant.

    Args:
        model: A model of steadeq, or any module with `DEQ` layers or without; it is exported in evaluation mode.
        x: A batch of any values, or a tuple of batches for a model with several inputs. The graph takes batches of all
            sizes, of samples of this shape and dtype. The inputs are called x, or x0, x1 and so on.
        solver: Picard, Anderson or Broyden with tol=0, whose `max_evals` is the number of evaluations; None for a model
            without an equilibrium.

    Raises:
        ExportError: The model, or this solver, cannot be exported.

    Example:
        >>> from steadeq import Anderson
        >>> from steadeq.models import ToyDEQ
        >>> exported = export_model(ToyDEQ(), torch.zeros(2, 1), solver=Anderson(max_evals=3, tol=0))
        >>> exported.program.module()(torch.zeros(5, 1)).shape
        torch.Size([5, 1])
        >>> exported.metadata["max_evals"]
        3
    """
    inputs = x if isinstance(x, tuple) else (x,)
    names = [f"x{index}" for index in range(len(inputs))] if isinstance(x, tuple) else ["x"]
    program = trace(model, inputs, solver=solver)
    metadata = {
        "model": type(model).__name__,
        "solver": None if solver is None else {"name": type(solver).__name__, **asdict(solver)},
        "max_evals": None if solver is None else solver.max_evals,
        "inputs": {
            name: {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}
            for name, value in zip(names, inputs, strict=True)
        },
        "torch": torch.__version__,
    }
    return ExportedModel(program=program, metadata=metadata)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Return the description of an exported file; an ONNX file needs the package onnx.

    Args:
        path: The file, .pt2 or .onnx.

    Raises:
        ExportError: The file is neither.
    """
    if kind_of(Path(path)) == "pt2":
        files = {_METADATA: ""}
        with _quiet():
            torch.export.load(path, extra_files=files)
        return json.loads(files[_METADATA])
    import onnx

    properties = onnx.load(path, load_external_data=False).metadata_props
    return {
        item.key.removeprefix("steadeq."): json.loads(item.value)
        for item in properties
        if item.key.startswith("steadeq.")
    }


def kind_of(path: Path) -> Format:
    """Return the kind of a file, by its ending.

    Args:
        path: The file.

    Raises:
        ExportError: It is neither .pt2 nor .onnx.
    """
    if path.suffix == ".pt2":
        return "pt2"
    if path.suffix == ".onnx":
        return "onnx"
    raise ExportError(f"{path} must end with .pt2 (for torch.export) or .onnx.")


def _reason(error: BaseException) -> str:
    """Return the first line of the error at the bottom of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what libraries have to say about each other from users."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
