"""Fixed-point problems with known solutions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DIM = 6


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Find z = f(z, *inputs) for a batch of (B, D) states.

    `radius` and `condition` are the largest spectral radius of J and the largest norm of (I - J)^-1 over the samples,
    at the solution and in float64: the error of a point is about its residual times the condition.
    """

    name: str
    f: Callable[..., Tensor]
    z0: Tensor
    inputs: tuple[Tensor, ...]
    exact: Tensor
    radius: float
    condition: float
    is_affine: bool

    def error(self, value: Tensor) -> Tensor:
        """Return the (B,) relative error of a value."""
        exact = self.exact.double()
        return (value.double() - exact).norm(dim=1) / exact.norm(dim=1)


def affine(dtype: torch.dtype, batch_size: int) -> Problem:
    return _affine("affine", _with_radius(_randn(DIM, DIM, seed=1), 0.7), dtype, batch_size)


def rotation(dtype: torch.dtype, batch_size: int) -> Problem:
    """Turn by 90 degrees and stretch by 1.2: plain iteration spirals outwards."""
    turn = torch.tensor([[0.0, -1.2], [1.2, 0.0]], dtype=torch.float64)
    return _affine("rotation", torch.block_diag(turn, turn, turn), dtype, batch_size)


def complex_pair(dtype: torch.dtype, batch_size: int) -> Problem:
    """A dominant pair 0.9 exp(±i π/3), seen through a random orthogonal change of basis."""
    angle = torch.tensor(torch.pi / 3, dtype=torch.float64)
    turn = 0.9 * torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    matrix = torch.block_diag(turn, torch.diag(torch.linspace(-0.4, 0.5, DIM - 2, dtype=torch.float64)))
    basis = torch.linalg.qr(_randn(DIM, DIM, seed=2))[0]
    return _affine("complex_pair", basis @ matrix @ basis.T, dtype, batch_size)


def jordan(dtype: torch.dtype, batch_size: int) -> Problem:
    """One Jordan block: a single eigenvector, and residuals that grow before they fall."""
    matrix = 0.5 * torch.eye(DIM, dtype=torch.float64) + torch.diag(torch.ones(DIM - 1, dtype=torch.float64), 1)
    return _affine("jordan", matrix, dtype, batch_size)


def near_critical(dtype: torch.dtype, batch_size: int) -> Problem:
    basis = torch.linalg.qr(_randn(DIM, DIM, seed=3))[0]
    eigenvalues = torch.linspace(-0.5, 0.99, DIM, dtype=torch.float64)
    return _affine("near_critical", basis @ torch.diag(eigenvalues) @ basis.T, dtype, batch_size)


def mixed(dtype: torch.dtype, batch_size: int) -> Problem:
    """Samples of different difficulty: the spectral radius of each is an input."""
    matrix = _with_radius(_randn(DIM, DIM, seed=4), 1.0).to(dtype)
    radius = torch.linspace(0.05, 0.95, batch_size, dtype=torch.float64)[:, None].to(dtype)
    b = _randn(batch_size, DIM, seed=5).to(dtype)
    systems = torch.eye(DIM, dtype=torch.float64) - radius.double()[:, :, None] * matrix.double()
    exact = torch.linalg.solve(systems, b.double())
    return _problem(
        "mixed", lambda z, radius, b: radius * (z @ matrix.to(z.dtype).T) + b, (radius, b), exact, dtype, is_affine=True
    )


def cosine(dtype: torch.dtype, batch_size: int) -> Problem:
    exact = torch.full((batch_size, 3), 0.7390851332151607, dtype=torch.float64)
    return _problem("cosine", torch.cos, (), exact, dtype, is_affine=False)


def tanh_network(dtype: torch.dtype, batch_size: int) -> Problem:
    weight = _with_radius(_randn(DIM, DIM, seed=6), 0.9).to(dtype)
    x = _randn(batch_size, DIM, seed=7).to(dtype)
    exact = torch.zeros(batch_size, DIM, dtype=torch.float64)
    for _ in range(2000):
        exact = torch.tanh(exact @ weight.double().T + x.double())
    return _problem(
        "tanh_network", lambda z, x: torch.tanh(z @ weight.to(z.dtype).T + x), (x,), exact, dtype, is_affine=False
    )


PROBLEMS: dict[str, Callable[[torch.dtype, int], Problem]] = {
    make.__name__: make for make in (affine, rotation, complex_pair, jordan, near_critical, mixed, cosine, tanh_network)
}


def _affine(name: str, matrix: Tensor, dtype: torch.dtype, batch_size: int) -> Problem:
    matrix = matrix.to(dtype)
    b = _randn(batch_size, DIM, seed=0).to(dtype)
    exact = torch.linalg.solve(torch.eye(DIM, dtype=torch.float64) - matrix.double(), b.double().T).T
    return _problem(name, lambda z, b: z @ matrix.to(z.dtype).T + b, (b,), exact, dtype, is_affine=True)


def _problem(
    name: str, f: Callable[..., Tensor], inputs: tuple[Tensor, ...], exact: Tensor, dtype: torch.dtype, **kind: Any
) -> Problem:
    batch_size, dim = exact.shape
    wide = tuple(tensor.double() for tensor in inputs)
    jacobians = torch.autograd.functional.jacobian(lambda z: f(z, *wide).sum(0), exact).movedim(1, 0)
    resolvents = torch.linalg.inv(torch.eye(dim, dtype=torch.float64) - jacobians)
    return Problem(
        name=name,
        f=f,
        z0=torch.zeros(batch_size, dim, dtype=dtype),
        inputs=inputs,
        exact=exact,
        radius=float(torch.linalg.eigvals(jacobians).abs().max()),
        condition=float(torch.linalg.matrix_norm(resolvents, 2).max()),
        **kind,
    )


def _randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _with_radius(matrix: Tensor, radius: float) -> Tensor:
    return matrix * (radius / torch.linalg.eigvals(matrix).abs().max())
