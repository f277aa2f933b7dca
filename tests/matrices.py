"""Matrices on which estimates of spectra are held to the truth, from benign to hopeless.

Each is a function without arguments that returns a float64 matrix, the same at every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Make = Callable[[], Tensor]


def generator(seed: int) -> torch.Generator:
    """Return a fresh source of random numbers."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    """Return independent standard normal numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def orthogonal(n: int, seed: int) -> Tensor:
    """Return a random orthogonal matrix."""
    return torch.linalg.qr(normal(n, n, seed=seed))[0]


def turned(T: Tensor, seed: int) -> Tensor:
    """Return T in a random orthonormal basis."""
    Q = orthogonal(T.shape[0], seed)
    return Q @ T @ Q.T


def gaussian(n: int, scale: float = 0.9) -> Tensor:
    """Return a matrix of independent entries, whose eigenvalues fill a disk."""
    return scale * normal(n, n, seed=n) / math.sqrt(n)


def with_values(values: Tensor, seed: int, *, coupling: float = 0.0) -> Tensor:
    """Return a matrix with real eigenvalues, normal or with random entries above the diagonal of its Schur form."""
    n = len(values)
    upper = torch.triu(normal(n, n, seed=seed + 1), 1) * coupling / math.sqrt(n)
    return turned(torch.diag(values.double()) + upper, seed)


def with_pairs(n: int, radii: Tensor, seed: int) -> Tensor:
    """Return a normal matrix with complex pairs of random angles."""
    angles = torch.rand(n // 2, dtype=torch.float64, generator=generator(seed)) * math.pi
    blocks = [
        r * torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
        for r, a in zip(radii.tolist(), angles.tolist(), strict=True)
    ]
    return turned(torch.block_diag(*[block.double() for block in blocks]), seed + 1)


def stochastic(n: int, *, num_links: int | None = None) -> Tensor:
    """Return a matrix of transition probabilities, dense or with a few links for each state."""
    P = torch.rand(n, n, dtype=torch.float64, generator=generator(n))
    if num_links is not None:
        P = P * (P.topk(num_links, dim=1).values[:, -1:] <= P)
    return P / P.sum(dim=1, keepdim=True)


def jordan(n: int, value: float, link: float = 1.0) -> Tensor:
    """Return one block."""
    return value * torch.eye(n, dtype=torch.float64) + link * torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)


def with_jordan_block(n: int, size: int, value: float) -> Tensor:
    """Return a matrix with one defective dominant eigenvalue among smaller ones."""
    rest = torch.diag(torch.linspace(0, 0.6 * value, n - size, dtype=torch.float64))
    return turned(torch.block_diag(jordan(size, value), rest), n + size)


def triangular(n: int, diagonal: float, above: float) -> Tensor:
    """Return an upper triangular matrix of two numbers."""
    ones = torch.ones(n, n, dtype=torch.float64)
    return diagonal * torch.diag(torch.diag(ones)) + above * torch.triu(ones, 1)


def convection(n: int, speed: float, dims: int) -> Tensor:
    """Return Jacobi's iteration matrix of convection and diffusion on a grid, with upwind differences."""
    h = 1 / (n + 1)
    ones = torch.ones(n - 1, dtype=torch.float64)
    left, right, middle = 1 / h**2 + speed / h, 1 / h**2, 2 / h**2 + speed / h
    T = (left * torch.diag(ones, -1) + right * torch.diag(ones, 1)) / middle
    if dims == 1:
        return T
    eye = torch.eye(n, dtype=torch.float64)
    return (torch.kron(T, eye) + torch.kron(eye, T)) / 2


def three_diagonals(n: int, below: float, diagonal: float, above: float) -> Tensor:
    """Return a Toeplitz matrix."""
    ones = torch.ones(n - 1, dtype=torch.float64)
    return below * torch.diag(ones, -1) + diagonal * torch.eye(n, dtype=torch.float64) + above * torch.diag(ones, 1)


def hopping(n: int, asymmetry: float) -> Tensor:
    """Return Hatano and Nelson's matrix: a random diagonal, and hopping that prefers a direction."""
    ahead, back = 0.4 * math.exp(asymmetry), 0.4 * math.exp(-asymmetry)
    return three_diagonals(n, back, 0.0, ahead) + torch.diag(0.3 * normal(n, seed=n))


def grcar(n: int) -> Tensor:
    """Return Grcar's matrix, Toeplitz with -1 below and four ones from the diagonal on."""
    A = np.triu(np.tril(np.ones((n, n)), 3)) - np.diag(np.ones(n - 1), -1)
    return torch.from_numpy(A)


def clement(n: int) -> Tensor:
    """Return Clement's matrix with eigenvalues between -1 and 1, symmetric up to a diagonal scaling."""
    k = np.arange(1, n)
    return torch.from_numpy((np.diag(k[::-1], 1) + np.diag(k, -1)) / (n - 1.0))


def kahan(n: int, angle: float = 1.2) -> Tensor:
    """Return Kahan's triangular matrix."""
    s, c = math.sin(angle), math.cos(angle)
    A = np.triu(-c * np.ones((n, n)), 1) + np.eye(n)
    return torch.from_numpy(np.diag(s ** np.arange(n)) @ A)


def frank(n: int) -> Tensor:
    """Return Frank's Hessenberg matrix, whose small eigenvalues are ill-conditioned."""
    i, j = np.indices((n, n)) + 1
    A = np.where(j >= i, n + 1.0 - j, np.where(j == i - 1, n - j * 1.0, 0))
    return torch.from_numpy(A / n)


def companion(coefficients: np.ndarray) -> Tensor:
    """Return the companion matrix of a polynomial whose leading coefficient is one."""
    A = np.diag(np.ones(len(coefficients) - 2), -1)
    A[0] = -coefficients[1:]
    return torch.from_numpy(A)


def tolosa(n: int) -> Tensor:
    """Return a matrix like Tolosa's, whose eigenvalues lie near the imaginary axis, less normal the larger they are."""
    m = n // 2
    k = torch.arange(1, m + 1, dtype=torch.float64) / m
    eye = torch.eye(m, dtype=torch.float64)
    return torch.cat(
        [torch.cat([0 * eye, 5 * eye], dim=1), torch.cat([-torch.diag(k**2) / 5, -0.1 * torch.diag(k)], dim=1)]
    )


def causal(num_tokens: int, width: int, *, skip: float, mixing: float, seed: int) -> Tensor:
    """Return a block triangular matrix as of a causal Transformer, with a skip connection."""
    n = num_tokens * width
    weights = torch.tril(torch.ones(num_tokens, num_tokens, dtype=torch.float64))
    attention = torch.softmax(normal(num_tokens, num_tokens, seed=seed) + weights.log(), dim=1)
    value = normal(width, width, seed=seed + 1) / math.sqrt(width)
    local = torch.block_diag(*[normal(width, width, seed=seed + 2 + t) / math.sqrt(width) for t in range(num_tokens)])
    return skip * torch.eye(n, dtype=torch.float64) + mixing * torch.kron(attention, value) + 0.3 * local


def tanh_net(n: int, *, skip: float, seed: int) -> Tensor:
    """Return the Jacobian of skip z + (1 - skip) tanh(W z + x)."""
    W = 1.3 * normal(n, n, seed=seed) / math.sqrt(n)
    slope = 1 - torch.tanh(normal(n, seed=seed + 1)).square()
    return skip * torch.eye(n, dtype=torch.float64) + (1 - skip) * slope[:, None] * W


def circulant_shift(n: int) -> Tensor:
    """Return the cyclic shift."""
    return torch.roll(torch.eye(n, dtype=torch.float64), 1, 0)


def convolution(n: int, seed: int) -> Tensor:
    """Return a cyclic convolution by a random filter, a normal matrix with a dense spectrum."""
    filter_ = normal(5, seed=seed)
    return sum(filter_[k] * torch.roll(torch.eye(n, dtype=torch.float64), k - 2, 0) for k in range(5)) * 0.3


def eye_plus(n: int, c: float, size: float) -> Tensor:
    """Return a multiple of I plus something smaller."""
    return c * torch.eye(n, dtype=torch.float64) + size * normal(n, n, seed=n) / math.sqrt(n)


def linspace(a: float, b: float, n: int) -> Tensor:
    """Return evenly spaced numbers."""
    return torch.linspace(a, b, n, dtype=torch.float64)


BENIGN: dict[str, Make] = {
    **{f"gaussian {n}": (lambda n=n: gaussian(n)) for n in (10, 30, 100, 200, 400)},
    "gaussian of norm 1e-12, 50": lambda: 1e-12 * gaussian(50),
    "gaussian of norm 1e12, 50": lambda: 1e12 * gaussian(50),
    "gaussian of mean 0.5, 100": lambda: gaussian(100) + 0.5 / 100,
    **{f"symmetric {n}": (lambda n=n: with_values(linspace(-0.6, 0.95, n), n)) for n in (10, 100, 300)},
    "positive definite, decaying 200": lambda: with_values(0.95 ** torch.arange(200.0), 1),
    "semicircle 200": lambda: (gaussian(200) + gaussian(200).T) / 2,
    "normal pairs 100": lambda: with_pairs(100, linspace(0.1, 0.9, 50), 3),
    "normal pairs, gap 200": lambda: with_pairs(200, torch.cat([linspace(0.1, 0.8, 99), torch.tensor([0.95])]), 4),
    **{f"orthogonal {n}": (lambda n=n: 0.9 * orthogonal(n, n)) for n in (10, 50, 200)},
    "rotation 2": lambda: 0.9 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64),
    "cyclic shift 30": lambda: circulant_shift(30),
    "cyclic shift 100": lambda: circulant_shift(100),
    "convolution 128": lambda: convolution(128, 5),
    "convolution 400": lambda: convolution(400, 6),
    "stochastic 50": lambda: stochastic(50),
    "stochastic 300": lambda: stochastic(300),
    "stochastic, 3 links 200": lambda: stochastic(200, num_links=3),
    "substochastic, 5 links 300": lambda: 0.97 * stochastic(300, num_links=5),
    "clustered at the top 300": lambda: with_values(1 - torch.arange(300.0) / 1000, 7),
    "clustered at two values 100": lambda: with_values(torch.where(torch.arange(100) < 50, 0.9, 0.2), 8),
    "tiny gap 100": lambda: with_values(torch.cat([linspace(0, 0.8, 98), torch.tensor([0.899, 0.9])]), 9),
    "opposite signs 100": lambda: with_values(torch.cat([linspace(-0.5, 0.5, 98), torch.tensor([-0.9, 0.9])]), 10),
    "coupled, one large 100": lambda: with_values(
        torch.cat([linspace(0, 0.6, 99), torch.tensor([0.9])]), 11, coupling=1
    ),
    "coupled 100": lambda: with_values(linspace(-0.5, 0.9, 100), 12, coupling=0.5),
    "coupled 300": lambda: with_values(linspace(-0.5, 0.9, 300), 13, coupling=1),
    "rank 1, 100": lambda: torch.outer(normal(100, seed=1), normal(100, seed=2)) / 30,
    "rank 3, 200": lambda: normal(200, 3, seed=3) @ normal(3, 200, seed=4) / 200,
    "rank 10, 100": lambda: normal(100, 10, seed=5) @ normal(10, 100, seed=6) / 100,
    "companion, roots of unity 20": lambda: companion(np.array([1.0, *[0.0] * 19, -(0.9**20)])),
    "companion, random roots 10": lambda: companion(np.poly(np.random.default_rng(0).uniform(-0.9, 0.9, 10))),
    "clement 50": lambda: clement(50),
    "clement 100": lambda: clement(100),
    "kahan 30": lambda: kahan(30),
    "kahan 100": lambda: kahan(100, 0.9),
    "frank 12": lambda: frank(12),
    "frank 50": lambda: frank(50),
    "tolosa 20": lambda: tolosa(20),
    "tolosa 100": lambda: tolosa(100),
    "causal 16x8": lambda: causal(16, 8, skip=0.0, mixing=0.5, seed=20),
    "causal, skip 16x16": lambda: causal(16, 16, skip=0.5, mixing=0.4, seed=30),
    "causal, skip 32x8": lambda: causal(32, 8, skip=0.8, mixing=0.2, seed=40),
    "causal, one width 64x1": lambda: causal(64, 1, skip=0.5, mixing=0.4, seed=50),
    **{
        f"tanh net, skip {s:g}, {n}": (lambda s=s, n=n: tanh_net(n, skip=s, seed=n))
        for s, n in ((0, 128), (0.8, 128), (0.5, 400))
    },
    "0.8 I + 0.15 R 300": lambda: eye_plus(300, 0.8, 0.15),
    "1.5 I + 0.2 R 100": lambda: eye_plus(100, 1.5, 0.2),
    "0.9 I + 0.001 R 100": lambda: eye_plus(100, 0.9, 0.001),
    "-0.7 I + 0.2 R 200": lambda: eye_plus(200, -0.7, 0.2),
    "identity 50": lambda: 0.9 * torch.eye(50, dtype=torch.float64),
    "zero 20": lambda: torch.zeros(20, 20, dtype=torch.float64),
    "defective pair 3": lambda: with_jordan_block(3, 2, 0.8),
    "defective pair 50": lambda: with_jordan_block(50, 2, 0.8),
    "defective triple 40": lambda: with_jordan_block(40, 3, 0.8),
    "defective of order 5, 60": lambda: with_jordan_block(60, 5, 0.7),
    "hidden by a small angle 100": lambda: torch.block_diag(
        gaussian(99, 0.5), torch.tensor([[0.9]], dtype=torch.float64)
    ),
}
"""The dominant eigenvalues are well-conditioned, or ill-conditioned by a small defective block only."""

NON_NORMAL: dict[str, Make] = {
    "convection 1-D, 40": lambda: convection(40, 40.0, 1),
    "convection 1-D, 100": lambda: convection(100, 100.0, 1),
    "convection 1-D, strong 100": lambda: convection(100, 1000.0, 1),
    "convection 20x20": lambda: convection(20, 20.0, 2),
    "convection 40x40": lambda: convection(40, 20.0, 2),
    "convection 40x40, strong": lambda: convection(40, 100.0, 2),
    "grcar 30": lambda: grcar(30),
    "grcar 100": lambda: grcar(100),
    "grcar 300": lambda: grcar(300),
    "triangular 20": lambda: triangular(20, 0.9, 0.1),
    "triangular 50": lambda: triangular(50, 0.9, 0.1),
    "triangular 100": lambda: triangular(100, 0.9, 0.1),
    "random triangular 100": lambda: torch.triu(normal(100, 100, seed=60)) / 10,
    "jordan 10": lambda: turned(jordan(10, 0.9), 61),
    "jordan 10, not turned": lambda: jordan(10, 0.9),
    "jordan 50": lambda: jordan(50, 0.9),
    "jordan 50, link 0.1": lambda: jordan(50, 0.9, 0.1),
    "shift 30": lambda: jordan(30, 0.0),
    "shift 100": lambda: jordan(100, 0.0),
    "companion of order 10, one root": lambda: companion(np.poly(np.full(10, 0.9))),
    "coupled strongly 100": lambda: with_values(linspace(-0.5, 0.9, 100), 62, coupling=5),
}
"""Pseudo-eigenvalues outside of the spectrum."""

HELD_OUT: dict[str, Make] = {
    **{f"gaussian {n}, held out": (lambda n=n: gaussian(n, 1.1)) for n in (60, 150, 350)},
    **{f"tanh net {n}, held out": (lambda n=n: tanh_net(n, skip=0.3, seed=n + 7)) for n in (64, 256)},
    "causal 24x10, held out": lambda: causal(24, 10, skip=0.3, mixing=0.6, seed=77),
    "normal pairs 160, held out": lambda: with_pairs(160, linspace(0.2, 0.97, 80), 91),
    "symmetric 250, held out": lambda: with_values(0.3 * normal(250, seed=8), 9),
    "masked convolution 256, held out": lambda: convolution(256, 9).T * (normal(256, seed=4) > 0),
    "0.5 I + rank 4, 200, held out": lambda: (
        eye_plus(200, 0.5, 0) + normal(200, 4, seed=1) @ normal(4, 200, seed=2) / 300
    ),
}
"""Benign ones that no constant was chosen by."""

HELD_OUT_NON_NORMAL: dict[str, Make] = {
    **{f"hopping {n}, {g:g}": (lambda n=n, g=g: hopping(n, g)) for n in (50, 120) for g in (0.3, 0.6)},
    **{
        f"three diagonals {n}, {a:g}, {b:g}, {c:g}": (lambda n=n, a=a, b=b, c=c: three_diagonals(n, a, b, c))
        for n, a, b, c in ((60, 0.9, 0, 0.2), (60, 0.6, 0.2, 0.1), (150, 0.7, 0.1, 0.3), (150, 0.9, 0, 0.05))
    },
    "jordan 20, link 0.5": lambda: jordan(20, 0.8, 0.5),
    "jordan 150, link 0.4": lambda: jordan(150, 0.5, 0.4),
    "shift 60": lambda: jordan(60, 0.0),
    "triangular 70": lambda: triangular(70, 0.5, 0.05),
    "random triangular 60": lambda: torch.triu(normal(60, 60, seed=3)) / math.sqrt(60),
    "random triangular 120, one value": lambda: (
        eye_plus(120, 0.7, 0) + torch.triu(normal(120, 120, seed=33), 1) / math.sqrt(120)
    ),
    "convection 1-D, 70": lambda: convection(70, 70.0, 1),
    "convection 30x30": lambda: convection(30, 60.0, 2),
    "grcar 60": lambda: grcar(60),
    "coupled 150": lambda: with_values(linspace(-0.4, 0.8, 150), 71, coupling=2),
    "causal, strong attention 40x4": lambda: causal(40, 4, skip=0.5, mixing=0.9, seed=5),
}
"""Ones far from normal that no constant was chosen by."""

MATRICES: dict[str, Make] = {**BENIGN, **NON_NORMAL, **HELD_OUT, **HELD_OUT_NON_NORMAL}


def true_radius(M: Tensor, name: str = "") -> float:
    """Return the largest absolute eigenvalue: known by name, on the diagonal of a triangular matrix, or computed."""
    if name in _KNOWN:
        return _KNOWN[name]
    if torch.equal(M, torch.triu(M)) or torch.equal(M, torch.tril(M)):
        return M.diagonal().abs().max().item()
    return float(np.abs(np.linalg.eigvals(M.numpy())).max())


def convection_radius(n: int, speed: float) -> float:
    """Return the radius of a grid's iteration matrix, 2 sqrt(left right) cos(pi h) / middle."""
    h = 1 / (n + 1)
    left, right, middle = 1 / h**2 + speed / h, 1 / h**2, 2 / h**2 + speed / h
    return 2 * math.sqrt(left * right) * math.cos(math.pi * h) / middle


# What rounding would move by more than an error: formulas, eigenvalues that a matrix was made with, and Grcar's from
# a diagonal scaling that brings it near a normal matrix.
_KNOWN = {
    **{
        f"hopping {n}, {g:g}": torch.linalg.eigvalsh(hopping(n, 0.0)).abs().max().item()
        for n in (50, 120)
        for g in (0.3, 0.6)
    },
    **{
        f"three diagonals {n}, {a:g}, {b:g}, {c:g}": b + 2 * math.sqrt(a * c) * math.cos(math.pi / (n + 1))
        for n, a, b, c in ((60, 0.9, 0, 0.2), (60, 0.6, 0.2, 0.1), (150, 0.7, 0.1, 0.3), (150, 0.9, 0, 0.05))
    },
    "convection 1-D, 70": convection_radius(70, 70.0),
    "convection 30x30": convection_radius(30, 60.0),
    "coupled 150": 0.8,
    "convection 1-D, 40": convection_radius(40, 40.0),
    "convection 1-D, 100": convection_radius(100, 100.0),
    "convection 1-D, strong 100": convection_radius(100, 1000.0),
    "convection 20x20": convection_radius(20, 20.0),
    "convection 40x40": convection_radius(40, 20.0),
    "convection 40x40, strong": convection_radius(40, 100.0),
    "grcar 100": 2.2629256356607,
    "grcar 300": 2.26437914656,
    "jordan 10": 0.9,
    "companion of order 10, one root": 0.9,
    "companion, roots of unity 20": 0.9,
    "coupled 100": 0.9,
    "coupled 300": 0.9,
    "coupled strongly 100": 0.9,
    "defective pair 3": 0.8,
    "defective pair 50": 0.8,
    "defective triple 40": 0.8,
    "defective of order 5, 60": 0.7,
    "clement 50": 1.0,
    "clement 100": 1.0,
}
