"""An equilibrium: the map, the state, and how the state was found."""

from __future__ import annotations

import enum
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, cast

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar  # with torch; typing has no defaults before Python 3.13


class ConvergenceError(RuntimeError):
    """Raised on request when a solve did not reach its tolerance."""


class ConvergenceWarning(UserWarning):
    """Issued when a solve with gradients, or its backward solve, does not reach its tolerance."""


class RandomnessWarning(UserWarning):
    """Issued when f returns another result each time for the same state, so that it has no fixed point."""


class Status(enum.IntEnum):
    """Why a sample's solve ended; `message` says what to do about it.

    Growth and residual are measured over the whole sample, so that a part of its state that is small beside the rest
    may still drift where `CONVERGED` is said of it; compare f(z) with z leaf by leaf where that matters.
    """

    CONVERGED = 0
    MAX_EVALS = 1
    NON_FINITE = 2
    STAGNATED = 3
    NOT_MEASURED = 4
    DIVERGED = 5

    @property
    def message(self) -> str:
        """One sentence: what happened, and what to try."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "The relative residual reached the tolerance.",
    Status.MAX_EVALS: (
        "The evaluation limit was reached before the tolerance: raise max_evals, loosen tol, or regularize the "
        "Jacobian so that fewer evaluations suffice."
    ),
    Status.NON_FINITE: (
        "An evaluation returned a NaN or an infinity: the state is the best finite iterate before it; check the "
        "inputs, lower the step (damping or mixing), normalize the cell's output, or regularize the Jacobian."
    ),
    Status.STAGNATED: (
        "The residual stopped falling, or falls by less than 0.1% in ten evaluations: it is at the rounding limit of "
        "this dtype, or the map hardly contracts here; loosen tol, use a wider dtype, or try another solver."
    ),
    Status.DIVERGED: (
        "The state kept growing and its residual did not fall: f seems to have no fixed point nearby, as is common "
        "for blocks that add to their state; normalize the output of f, or regularize the Jacobian."
    ),
    Status.NOT_MEASURED: "Nothing was iterated, so there is no residual to measure.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class SolveStats:
    """How a solve went; every number is per sample and stays on the device of the state.

    Example:
        >>> import torch, steadeq
        >>> stats = steadeq.fixed_point(torch.cos, torch.zeros(2, 3)).stats
        >>> stats.converged.tolist(), stats.num_evals.tolist()
        ([True, True], [5, 5])
        >>> print(stats)
        forward: 2 of 2 samples converged in 5 evaluations, largest residual 7.8e-05
    """

    residual: Tensor
    """(B,) relative residual ‖f(z) - z‖ / ‖f(z)‖ of the returned state; infinity where no evaluation was finite, NaN
    where nothing was measured."""
    num_evals: Tensor
    """(B,) int64: number of evaluations of f spent on each sample."""
    status: Tensor
    """(B,) int64 holding `Status` members."""
    trace: Tensor
    """(evaluations, B) relative residual at each evaluation; a finished sample repeats its last one."""
    is_backward: bool = False
    """Whether this is the linear solve of a backward pass, where an evaluation is a vector-Jacobian product."""
    is_staggered: bool = False
    """Whether samples are known to have stopped one after the other; never so with `tol=0` on an accelerator."""

    @property
    def converged(self) -> Tensor:
        """(B,) bool: which samples reached the tolerance."""
        return self.status == Status.CONVERGED

    def failures(self) -> str:
        """Count the samples that did not converge by status, and say what to try; empty if all converged."""
        parts = []
        for status in (Status.MAX_EVALS, Status.NON_FINITE, Status.STAGNATED, Status.DIVERGED):
            count = int((self.status == status).sum())
            if count:
                parts.append(f"{count} of {self.status.numel()} samples {status.name}: {status.message}")
        if not parts:
            return ""
        return " ".join(parts) + f" Largest relative residual: {float(self.residual.max()):.1e}."

    def lose(self, rows: Tensor) -> SolveStats:
        """Return the stats with the samples of a mask marked as not finite."""
        return replace(
            self,
            residual=torch.where(rows, torch.inf, self.residual),
            status=torch.where(rows, int(Status.NON_FINITE), self.status),
        )

    def __str__(self) -> str:
        """Summarize the solve in one line."""
        label, unit = ("backward", "vector-Jacobian products") if self.is_backward else ("forward", "evaluations")
        effort = f"{int(self.num_evals.max())} {unit}"
        if bool(self.residual.isnan().all()):
            return f"{label}: {self.status.numel()} samples, {effort}, residual not measured"
        return (
            f"{label}: {int(self.converged.sum())} of {self.status.numel()} samples converged in {effort}, "
            f"largest residual {float(self.residual.max()):.1e}"
        )

    def __repr__(self) -> str:
        """Show what happened, not the (large) tensors."""
        counts = ", ".join(
            f"{int((self.status == s).sum())} {s.name}" for s in Status if bool((self.status == s).any())
        )
        shape = tuple(self.trace.shape)
        return f"SolveStats(status={{{counts}}}, max residual={float(self.residual.max()):.3g}, trace={shape})"

    @classmethod
    def not_measured(cls, batch_size: int, num_evals: int, *, like: Tensor) -> SolveStats:
        """Return the stats of a pass that spends a fixed number of evaluations and measures no residual.

        Args:
            batch_size: Number of samples.
            num_evals: Number of evaluations spent on each sample.
            like: Tensor whose device and dtype are taken.
        """
        residual = torch.full((batch_size,), float("nan"), device=like.device, dtype=like.dtype)
        return cls(
            residual=residual,
            num_evals=torch.full((batch_size,), num_evals, device=like.device),
            status=torch.full((batch_size,), int(Status.NOT_MEASURED), device=like.device),
            trace=residual.new_empty((0, batch_size)),
        )


class BackwardRecord:
    """Where the backward pass of an equilibrium leaves its stats.

    Apart from the equilibrium, as the graph of the state holds on to it: with the equilibrium in its place the two
    would keep each other, and all memory of the graph, alive.
    """

    __slots__ = ("_stats",)

    def __init__(self) -> None:
        self._stats: SolveStats | None = None

    @property
    def stats(self) -> SolveStats | None:
        """How the latest backward pass went, or None before the first."""
        return self._stats

    @stats.setter
    def stats(self, stats: SolveStats) -> None:
        self._stats = replace(stats, is_backward=True)


def not_a_map(name: str, value: Any, expected: str) -> str:
    """Return the sentence about what was passed instead of a map."""
    found = f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
    hint = f" Create one first, as in {value.__name__}(...)." if isinstance(value, type) else ""
    return f"{name} is {found}; it must be {expected} that maps (z, *inputs) to a new z.{hint}"


def check_map(f: Any, num_inputs: int = 0) -> None:
    """Refuse a map that does not take the state first, or does not take this number of inputs.

    Raises:
        TypeError: f is not a map, or a module of PyTorch that would take the input for something else, or a module with
            too few arguments.
    """
    if isinstance(f, type) or not callable(f):
        raise TypeError(not_a_map("f", f, "a function or a module"))
    forward = getattr(type(f), "forward", None)
    inner = getattr(f, "cell", None)
    if (
        callable(getattr(f, "solve", None))
        and isinstance(inner, nn.Module)
        and num_inputs + 1 >= _room(type(inner).forward)
    ):
        raise TypeError(
            f"f is a layer that solves for a state of its own, a {type(f).__name__}, and its cell takes no further "
            "input; pass the map itself, `layer.cell`."
        )
    if forward in (nn.RNN.forward, nn.GRU.forward, nn.LSTM.forward):
        raise TypeError(
            f"{type(f).__name__} reads a whole sequence, but the map is one step, called as f(z, x). Use "
            f"{type(f).__name__}Cell, in a module whose `forward(self, z, x)` returns `self.cell(x, z)`."
        )
    if num_inputs and forward in (nn.TransformerEncoderLayer.forward, nn.TransformerEncoder.forward):
        raise TypeError(
            f"{type(f).__name__} takes a mask as its second argument, where the map is called with an input. Wrap it "
            "in a module whose `forward(self, z, x)` returns `self.layer(z + x)`."
        )
    if forward in (nn.RNNCell.forward, nn.GRUCell.forward, nn.LSTMCell.forward):
        raise TypeError(
            f"{type(f).__name__} takes the input first and the state second, but the map is called with the state "
            "first, as f(z, x). Wrap it in a function, `lambda z, x: cell(x, z)`, or, for DEQ, in a module whose "
            "`forward(self, z, x)` returns `self.cell(x, z)`."
        )
    # A forward of the instance itself may take anything.
    if isinstance(f, nn.Module) and "forward" not in vars(f) and num_inputs >= (room := _room(type(f).forward)):
        raise TypeError(
            f"{type(f).__name__} takes {room} argument{'s' if room != 1 else ''}, but is called with the state and "
            f"{num_inputs} input{'s' if num_inputs != 1 else ''}. The map needs a `forward(self, z, x)` with both, "
            "such as `torch.tanh(self.linear(z) + x)`."
        )


@functools.lru_cache(maxsize=64)
def _room(forward: Callable[..., Any]) -> float:
    """Return how many arguments a method takes by place, beside the module itself; infinity if that is not known."""
    try:
        kinds = [parameter.kind for parameter in inspect.signature(forward).parameters.values()]
    except (TypeError, ValueError):
        return math.inf
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return math.inf
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in by_place for kind in kinds) - 1


State_co = TypeVar("State_co", default=Any, covariant=True)
_S = TypeVar("_S")
Stats_co = TypeVar("Stats_co", bound="SolveStats | None", default="SolveStats | None", covariant=True)


class Equilibrium(Generic[State_co, Stats_co]):
    """A state z with z = f(z, *inputs), the map, its inputs, and statistics of the solve.

    `fixed_point` and `DEQ.solve` return one; `Equilibrium.at` makes one from a state that was computed elsewhere.
    Penalties, regularizers and spectral estimates take one.

    Its type is `Equilibrium[Tensor, SolveStats]` if a solve returned it, `Equilibrium[Tensor, None]` if
    `Equilibrium.at` made it, and plain `Equilibrium` for both.

    Args:
        f: The map, called as f(z, *inputs).
        z: The state; part of the graph if gradients are on.
        inputs: Further arguments of f.
        stats: How the solve went, or None if nothing was solved.
        states: States on the way to z, at the evaluations that `states_at` named.
        record: Where backward passes store their stats.
        batch_dims: 1 if dim 0 of the state is a batch of independent samples, 0 if the whole state is one sample.

    Example:
        >>> import torch, steadeq
        >>> eq = steadeq.fixed_point(torch.cos, torch.zeros(2, 3))
        >>> eq.z.shape
        torch.Size([2, 3])
        >>> eq
        Equilibrium(forward: 2 of 2 samples converged in 5 evaluations, largest residual 7.8e-05)
    """

    def __init__(
        self,
        f: Callable[..., Any],
        z: State_co,
        inputs: tuple[Any, ...],
        *,
        stats: Stats_co = None,
        states: tuple[Any, ...] = (),
        record: BackwardRecord | None = None,
        batch_dims: int = 1,
    ) -> None:
        self.f, self.z, self.inputs, self.stats, self.states = f, z, inputs, stats, states
        self.batch_dims = batch_dims
        self._record = BackwardRecord() if record is None else record

    @classmethod
    def at(
        cls,
        f: Callable[..., Any],
        z: _S,
        *inputs: Any,
        evaluate: Callable[..., Any] | None = None,
        batch_dims: int = 1,
    ) -> Equilibrium[_S, None]:
        """Return the equilibrium of a state that was computed elsewhere, by your own loop or by another library.

        Nothing is solved or checked: z may also be a state near an equilibrium, or on the way to one.

        Args:
            f: The map, called as f(z, *inputs).
            z: The state: a tensor, or a nested tuple, list or dict of them.
            *inputs: Further arguments of f.
            evaluate: How f is called, as evaluate(f, z, *inputs), if it takes or returns more than the state:
                `lambda block, z, x: block(z, x, mask=mask)[0]`.
            batch_dims: 1 if dim 0 is a batch of independent samples, 0 if the whole state is one sample.

        Example:
            >>> import torch
            >>> from steadeq import Equilibrium, spectral_radius
            >>> W = torch.diag(torch.tensor([0.5, -0.8]))
            >>> spectral_radius(Equilibrium.at(lambda z: z @ W.T, torch.zeros(1, 2))).value
            tensor([0.8000])
        """
        if evaluate is None:
            check_map(f, len(inputs))
        else:
            f = functools.partial(evaluate, f)
        return Equilibrium(f, z, inputs, batch_dims=batch_dims)

    @property
    def backward(self) -> SolveStats | None:
        """How the latest backward solve through this equilibrium went, or None before the first."""
        return self._record.stats

    def raise_if_failed(self) -> Equilibrium[State_co, SolveStats]:
        """Return the equilibrium itself if every sample converged.

        Raises:
            ConvergenceError: Some samples did not converge; the message counts them by status and says what to try.
            ValueError: `Equilibrium.at` made this equilibrium, so there was no solve.
        """
        if self.stats is None:
            raise ValueError(
                "This equilibrium comes from Equilibrium.at(...), which does not solve, so there is no status to check."
            )
        failures = self.stats.failures()
        if failures:
            raise ConvergenceError(failures)
        return cast("Equilibrium[State_co, SolveStats]", self)

    def __repr__(self) -> str:
        """Say how the solve went."""
        return f"Equilibrium({'given state' if self.stats is None else self.stats})"
