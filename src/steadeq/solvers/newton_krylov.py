"""Newton's method with Krylov inner solves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._internal.validation import check_count
from ._history import combine, products, weighted_sum
from ._krylov import minimize_residual, orthogonalize_again, reciprocal, rotation, unit
from .base import WINDOW, AbstractSolver, Rule


@dataclass(frozen=True, kw_only=True)
class NewtonKrylov(AbstractSolver):
    """Inexact Newton on f(z) - z; each linear system is solved by GMRES on differences of f.

    Worth its inner evaluations where the spectral radius is near or above 1 and the tolerance is tight; Anderson or
    Broyden are cheaper otherwise. Every inner product is an evaluation of f close to the current point, and counts
    as one. The inner tolerance follows Eisenstat and Walker (1996), and a step that does not reduce the residual is
    halved.

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> solver = NewtonKrylov(max_evals=20, tol=1e-6)
        >>> fixed_point(lambda z: 3 * torch.cos(z), torch.ones(1, 1), solver=solver).z  # |f'| = 2.7 there
        tensor([[1.1701]])
    """

    memory: int | None = None
    """Most evaluations inside a Newton step, at one state of memory each; None for 10, or the size of states of up to
    40 elements."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_count("memory", self.memory)

    def start(self, z: Tensor, eps: float) -> Rule:
        """Return a fresh rule."""
        dim = z.shape[1]
        memory = self.memory or (max(_MEMORY, dim) if dim <= _SMALL else _MEMORY)
        return NewtonKrylovRule(z, max_evals=self.max_evals, tol=self.tol, memory=memory, probe_length=math.sqrt(eps))


_MEMORY, _SMALL = 10, 40


class NewtonKrylovRule(Rule):
    """Newton steps whose inner and outer evaluations interleave freely between samples.

    Each row is in one of two phases. Probing, it evaluates f at its base point plus a basis vector of its Krylov space;
    stepping, it evaluates f at a candidate for the next base point. A basis has as many columns as its row has probed
    and zeros after them, so that rows at different depths share all batched products.

    Args:
        z: (B, D) start of the solve.
        max_evals: Number of evaluations that the solve may spend.
        tol: The tolerance of the solve, beyond which no linear system is solved.
        memory: The most columns of a basis.
        probe_length: Distance of a probe from its base, relative to the larger of ‖z‖ and ‖f(z)‖.
    """

    def __init__(self, z: Tensor, *, max_evals: int, tol: float, memory: int, probe_length: float) -> None:
        batch_size, dim = z.shape
        self._tol, self._probe_length = tol, probe_length
        self._evals_left = max_evals
        self._is_first = True
        self._memory = max(1, min(memory, max_evals - 2))
        self.num_quiet_windows = 1 + self._memory // WINDOW
        zeros = z.new_zeros(batch_size)
        self._is_probing = torch.zeros_like(zeros, dtype=torch.bool)
        self._base = self._base_image = self._base_residual = self._step = torch.zeros_like(z)
        self._base_norm = torch.full_like(zeros, math.inf)
        self._length = zeros
        self._forcing = torch.full_like(zeros, 0.3)
        self._fraction = torch.ones_like(zeros)
        self._size = torch.zeros_like(zeros, dtype=torch.int64)
        self._basis = z.new_zeros(batch_size, self._memory + 1, dim)
        self._hessenberg = z.new_zeros(batch_size, self._memory + 1, self._memory)
        self._normal = z.new_zeros(batch_size, self._memory + 1)

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None) -> Tensor:
        """Return, for each row, the next probe or the next candidate."""
        self._evals_left -= 1
        if self._is_first:
            # States usually start at zero, where the Jacobian says little about the equilibrium.
            self._is_first = False
            return fz
        stepping = ~self._is_probing
        halving = self._accept(stepping, z, fz, g)
        solved = self._probe_image(fz)
        candidate = torch.where(halving[:, None], self._base + self._fraction[:, None] * self._step, self._base)
        if solved.any():
            weights, _ = minimize_residual(self._hessenberg, self._normal, self._size, self._base_norm)
            step = weighted_sum(weights, self._basis[:, :-1])
            step = torch.where((self._size > 0)[:, None], step, self._base_residual)
            self._step = torch.where(solved[:, None], step, self._step)
            candidate = torch.where(solved[:, None], self._base + self._step, candidate)
        self._is_probing = ~(solved | halving)
        newest = self._basis.take_along_dim(self._size[:, None, None], dim=1)[:, 0]
        probe = self._base + self._length[:, None] * newest
        return torch.where(self._is_probing[:, None], probe, candidate)

    def _accept(self, stepping: Tensor, z: Tensor, fz: Tensor, g: Tensor) -> Tensor:
        """Move the base of rows whose candidate is good; return the rows whose step is to be halved instead."""
        norm = torch.linalg.vector_norm(g, dim=1)
        halving = stepping & (norm > self._base_norm) & (self._fraction > 0.1)
        self._fraction = torch.where(halving, self._fraction / 2, 1.0)
        accepted = stepping & ~halving
        mask = accepted[:, None]
        image_norm = torch.linalg.vector_norm(fz, dim=1)
        # Solving the linear system beyond the tolerance of the solve would be wasted.
        least_forcing = 0.5 * self._tol * image_norm * reciprocal(norm)
        ratio = (norm / self._base_norm).nan_to_num(1.0)
        forcing = torch.where(self._base_norm.isinf(), 0.3, (0.9 * ratio.square()).clamp(0.01, 0.9))
        forcing = torch.maximum(forcing, least_forcing.clamp(max=0.9))
        self._forcing = torch.where(accepted, forcing, self._forcing)
        self._base, self._base_image = torch.where(mask, z, self._base), torch.where(mask, fz, self._base_image)
        self._base_residual = torch.where(mask, g, self._base_residual)
        self._base_norm = torch.where(accepted, norm, self._base_norm)
        scale = torch.maximum(image_norm, torch.linalg.vector_norm(z, dim=1))
        self._length = torch.where(accepted, self._probe_length * scale, self._length)
        self._basis = torch.where(mask[:, :, None], 0, self._basis)
        self._basis[:, 0] = torch.where(mask, unit(g, norm), self._basis[:, 0])
        self._hessenberg = torch.where(mask[:, :, None], 0, self._hessenberg)
        self._normal = torch.where(mask, torch.eye(1, self._memory + 1).to(self._normal), self._normal)
        self._size = torch.where(accepted, 0, self._size)
        return halving

    def _probe_image(self, fz: Tensor) -> Tensor:
        """Extend the basis of probing rows; return the rows whose linear system is solved well enough."""
        probing = self._is_probing
        image = (fz - self._base_image) * reciprocal(self._length)[:, None]
        along = products(self._basis, image)
        rest = combine(image, along, self._basis, scale=-1.0)
        along, rest, norm = orthogonalize_again(self._basis, along, rest)
        size = torch.where(probing, self._size + 1, self._size)
        # The new entries go to row and column `size` of each probing sample, elsewhere everything stays.
        positions = torch.arange(self._memory + 1, device=fz.device)
        is_new = probing[:, None] & (positions == size[:, None])
        self._basis = torch.where(is_new[:, :, None], unit(rest, norm)[:, None], self._basis)
        column = along + is_new * norm[:, None]
        is_column = probing[:, None] & (positions[:-1] == self._size[:, None])
        self._hessenberg = torch.where(is_column[:, None], column[:, :, None], self._hessenberg)
        last = self._normal.gather(1, self._size[:, None])[:, 0]
        cosine, sine = rotation(self._normal, last, along, norm)
        normal = self._normal * cosine[:, None] + is_new * sine[:, None]
        self._normal = torch.where(probing[:, None], normal, self._normal)
        self._size = size
        is_enough = (self._normal[:, 0].abs() <= self._forcing) | (size >= self._memory)
        # The last evaluation is never spent on a probe: a candidate may be the answer, a probe only informs.
        is_last = self._evals_left <= 1
        return (probing & is_enough) | (is_last & (probing | (size == 0)))

    def select(self, rows: Tensor) -> None:
        """Keep the given rows."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value.index_select(0, rows))
