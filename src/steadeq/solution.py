"""What a solve returns: the value, how good it is, and why it stopped."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class ConvergenceError(RuntimeError):
    """Raised on request when a solve did not reach its tolerance."""


class ConvergenceWarning(UserWarning):
    """Issued when a solve through which gradients flow, or its backward solve, stops short of its tolerance."""


class RandomnessWarning(UserWarning):
    """Issued when f gives other values for the same point, so that it has no fixed point to be found."""


class Status(enum.IntEnum):
    """Why a sample's solve ended; `message` says what to do about it."""

    CONVERGED = 0
    MAX_EVALS = 1
    NON_FINITE = 2
    STAGNATED = 3

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
        "An evaluation returned a NaN or an infinity: the value is the best finite iterate before it; check the "
        "inputs, lower the step (damping or mixing), normalize the cell's output, or regularize the Jacobian."
    ),
    Status.STAGNATED: (
        "The residual stopped falling: it is at the rounding limit of this dtype or the map does not contract here; "
        "loosen tol, use a wider dtype, or try another solver."
    ),
}


class BackwardRecord:
    """Filled by the adjoint each time autograd passes through the solution."""

    __slots__ = ("solution",)

    def __init__(self) -> None:
        self.solution: Solution | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """The outcome of a solve; every statistic is per sample and stays on the device of the state.

    Example:
        >>> import torch, steadeq
        >>> solution = steadeq.fixed_point(torch.cos, torch.zeros(2, 3))
        >>> bool(solution.converged.all())
        True
        >>> print(solution)
        Solution(2 of 2 samples converged in 5 evaluations, largest residual 7.8e-05)
    """

    value: Any
    """The best iterate seen, structured like z0."""
    residual: Tensor
    """(B,) relative residual ‖f(z) - z‖ / ‖f(z)‖ of the value; infinity where no evaluation was finite."""
    num_evals: Tensor
    """(B,) int64: evaluations of f spent on each sample."""
    status: Tensor
    """(B,) int64 holding `Status` members."""
    trace: Tensor
    """(evaluations, B) relative residual at each evaluation; a finished sample repeats its last one."""
    _record: BackwardRecord = field(default_factory=BackwardRecord, repr=False, compare=False)

    @property
    def converged(self) -> Tensor:
        """(B,) bool: which samples reached the tolerance."""
        return self.status == Status.CONVERGED

    @property
    def backward(self) -> Solution | None:
        """Statistics of the latest backward solve through this solution, or None before the first."""
        return self._record.solution

    def raise_if_failed(self) -> Solution:
        """Return the solution itself if every sample converged.

        Raises:
            ConvergenceError: Some sample did not; the message counts the samples by status and says what to try.
        """
        failures = self._failures()
        if failures:
            raise ConvergenceError(failures)
        return self

    def _failures(self) -> str:
        parts = []
        for status in (Status.MAX_EVALS, Status.NON_FINITE, Status.STAGNATED):
            count = int((self.status == status).sum())
            if count:
                parts.append(f"{count} of {self.status.numel()} samples {status.name}: {status.message}")
        if not parts:
            return ""
        return " ".join(parts) + f" Largest relative residual: {float(self.residual.max()):.1e}."

    def __str__(self) -> str:
        """Summarize the solve in one line."""
        return (
            f"Solution({int(self.converged.sum())} of {self.status.numel()} samples converged in "
            f"{int(self.num_evals.max())} evaluations, largest residual {float(self.residual.max()):.1e})"
        )

    def __repr__(self) -> str:
        """Show statistics, not the (large) tensors."""
        counts = ", ".join(
            f"{int((self.status == s).sum())} {s.name}" for s in Status if bool((self.status == s).any())
        )
        shape = tuple(self.trace.shape)
        return f"Solution(status={{{counts}}}, max residual={float(self.residual.max()):.3g}, trace={shape})"


def unmeasured(batch_size: int, num_evals: int, like: Tensor) -> Solution:
    """Return the record of a backward pass that spends a fixed number of products and measures no residual."""
    residual = torch.full((batch_size,), float("nan"), device=like.device, dtype=like.dtype)
    return Solution(
        value=None,
        residual=residual,
        num_evals=torch.full((batch_size,), num_evals, device=like.device),
        status=torch.full((batch_size,), int(Status.MAX_EVALS), device=like.device),
        trace=residual.new_empty((0, batch_size)),
    )
