"""Cells, tight solvers and exact references that the tests of gradients share."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steadeq import GMRES, Anderson, Broyden, Implicit, NewtonKrylov, OneStep, Phantom, Picard, Shine, Unrolled
from steadeq._internal.trees import Shared
from steadeq.adjoints import AbstractAdjoint

TIGHT = Anderson(max_evals=200, tol=1e-13)
EXACT = Implicit(GMRES(max_evals=200, tol=1e-13))
LONG_LOOP = Picard(max_evals=400, tol=1e-15)

BACKWARD_SOLVERS = {
    "gmres": GMRES(max_evals=100, tol=1e-12),
    "anderson": Anderson(max_evals=200, tol=1e-12),
    "broyden": Broyden(max_evals=200, tol=1e-12),
    "picard": Picard(max_evals=400, tol=1e-12),
    "newton": NewtonKrylov(max_evals=400, tol=1e-12),
}

ADJOINTS = {
    "implicit": Implicit(GMRES(max_evals=100, tol=1e-12)),
    "one_step": OneStep(),
    "phantom": Phantom(),
    # Without its fallback, which makes the gradient depend on the length of u sample by sample.
    "shine": Shine(max_stretch=math.inf),
    "unrolled": Unrolled(),
}


def all_adjoints(tol: float) -> dict[str, AbstractAdjoint]:
    """Return every adjoint, and the implicit one with every solver, for narrow dtypes."""
    implicit, long = Implicit(GMRES(tol=min(tol, 1e-3))), {"tol": tol, "max_evals": 100}
    others = (Anderson(tol=tol), Broyden(tol=tol), Picard(**long), NewtonKrylov(**long))
    return {**ADJOINTS, "implicit": implicit, **{type(solver).__name__: Implicit(solver) for solver in others}}


FORWARD_SOLVERS = {
    "picard": Picard(max_evals=400, tol=1e-12),
    "anderson": Anderson(max_evals=200, tol=1e-12),
    "broyden": Broyden(max_evals=200, tol=1e-12),
    "newton": NewtonKrylov(max_evals=400, tol=1e-12),
}


def matrix(dim: int, norm: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a random square matrix of the given operator norm, without symmetry."""
    weight = torch.randn(dim, dim, dtype=torch.float64)
    return (weight * (norm / torch.linalg.matrix_norm(weight, 2))).to(dtype)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a random tensor that requires a gradient."""
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


class TanhCell(nn.Module):
    """tanh(W z + b + x), a contraction if the norm of W is below 1; counts how often it is called."""

    def __init__(self, dim: int, norm: float = 0.7, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrix(dim, norm, dtype))
        self.bias = nn.Parameter(0.1 * torch.randn(dim, dtype=dtype))
        self.num_calls = 0

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        self.num_calls += 1
        return torch.tanh(z @ self.weight.T + self.bias + x)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return ‖actual - expected‖ / ‖expected‖."""
    with torch.no_grad():
        return float(torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected))


def largest_error(actual, expected) -> float:
    """Return the largest relative error over two lists of gradients."""
    return max(relative_error(a, e) for a, e in zip(actual, expected, strict=True))


def energy(z: Tensor) -> Tensor:
    """Return a loss whose gradient depends on the state and differs by component."""
    flat = z.flatten(1)
    return (flat**3 + flat * torch.arange(1, flat.shape[1] + 1, dtype=z.dtype, device=z.device)).sum()


@dataclass(frozen=True)
class Offset(Shared):
    """An input that all samples share."""

    value: Tensor
    scales: tuple[Tensor, float]
