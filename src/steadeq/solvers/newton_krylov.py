"""Newton's method with Krylov inner solves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.validation import check_count
from ._krylov import minimize_residual, orthogonalize_again, rotation, unit
from ._window import combine, products, to_host, weighted_sum
from .base import WINDOW, AbstractSolver, Evaluation


class NewtonState(NamedTuple):
    """Newton steps whose inner and outer evaluations interleave freely between samples.

    Each row is in one of two phases. Probing, it evaluates f at its base point plus a basis vector of its Krylov space;
    stepping, it evaluates f at a candidate for the next base point. A basis has as many columns as its row has probed
    and zeros after them, so that rows at different depths share all batched products.
    """

    is_probing: Tensor
    base: Tensor
    base_image: Tensor
    base_residual: Tensor
    base_norm: Tensor
    """Norm of the residual at the base; infinite before there is one."""
    step: Tensor
    length: Tensor
    """Distance of a probe from its base."""
    relative_length: Tensor
    """The same relative to the larger of ‖z‖ and ‖f(z)‖ at the base."""
    forcing: Tensor
    """Relative residual at which the linear system is solved well enough."""
    fraction: Tensor
    """Part of the step that the candidate takes."""
    size: Tensor
    """Columns that the row has probed."""
    basis: Tensor
    hessenberg: Tensor
    normal: Tensor


@dataclass(frozen=True, kw_only=True)
class NewtonKrylov(AbstractSolver):
    """Inexact Newton on f(z) - z; each linear system is solved by GMRES on differences of f.

    Use it where the spectral radius is near or above 1 and the tolerance is tight; elsewhere Anderson and Broyden are
    cheaper. Every inner product is an evaluation of f close to the current point, and counts
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
    """Most evaluations inside a Newton step, each of which takes the memory of one state; None for 10, or for the size
    of the state if it has at most 40 elements."""

    # Its sizes follow from the budget, and its small systems need a choice of pivots.
    always_syncs = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_count("memory", self.memory)
        if self.causal:
            raise ValueError("NewtonKrylov has no causal form; use Anderson(causal=True) or Broyden(causal=True).")

    def _memory(self, dim: int) -> int:
        memory = self.memory or (max(_MEMORY, dim) if dim <= _SMALL else _MEMORY)
        return max(1, min(memory, self.max_evals - 2))

    def num_quiet_windows(self, dim: int) -> int:
        """Return how many windows a basis may take to build."""
        return 1 + self._memory(dim) // WINDOW

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> NewtonState:
        """Return the state before the first Newton step."""
        batch_size, dim = z.shape
        memory, zeros, nothing = self._memory(dim), z.new_zeros(batch_size), torch.zeros_like(z)
        return NewtonState(
            is_probing=torch.zeros_like(zeros, dtype=torch.bool),
            base=nothing,
            base_image=nothing,
            base_residual=nothing,
            base_norm=torch.full_like(zeros, math.inf),
            step=nothing,
            length=zeros,
            relative_length=torch.full_like(zeros, math.sqrt(eps)),
            forcing=torch.full_like(zeros, 0.3),
            fraction=torch.ones_like(zeros),
            size=torch.zeros_like(zeros, dtype=torch.int64),
            basis=z.new_zeros(batch_size, memory + 1, dim),
            hessenberg=z.new_zeros(batch_size, memory + 1, memory),
            normal=z.new_zeros(batch_size, memory + 1),
        )

    def step(self, state: NewtonState, at: Evaluation) -> tuple[NewtonState, Tensor]:
        """Return, for each row, the next probe or the next candidate."""
        if at.is_first:
            # States usually start at zero, where the Jacobian says little about the equilibrium.
            return state, at.fz
        state, halving = self._accept(state, at)
        state, solved = self._probe(state, at)
        candidate = torch.where(halving[:, None], state.base + state.fraction[:, None] * state.step, state.base)
        if not at.may_sync or to_host(solved.any()):
            weights, _ = minimize_residual(state.hessenberg, state.normal, state.size, state.base_norm)
            step = weighted_sum(weights, state.basis[:, :-1])
            step = torch.where((state.size > 0)[:, None], step, state.base_residual)
            state = state._replace(step=torch.where(solved[:, None], step, state.step))
            candidate = torch.where(solved[:, None], state.base + state.step, candidate)
        is_probing = ~(solved | halving)
        newest = state.basis.take_along_dim(state.size[:, None, None], dim=1)[:, 0]
        probe = state.base + state.length[:, None] * newest
        return state._replace(is_probing=is_probing), torch.where(is_probing[:, None], probe, candidate)

    def _accept(self, state: NewtonState, at: Evaluation) -> tuple[NewtonState, Tensor]:
        """Move the base of rows whose candidate is good; return also the rows whose step is to be halved instead."""
        stepping, norm = ~state.is_probing, torch.linalg.vector_norm(at.g, dim=1)
        halving = stepping & (norm > state.base_norm) & (state.fraction > 0.1)
        accepted = stepping & ~halving
        mask = accepted[:, None]
        image_norm = torch.linalg.vector_norm(at.fz, dim=1)
        # Solving the linear system beyond the tolerance of the solve would be wasted.
        least_forcing = unit((0.5 * at.tol * image_norm)[:, None], norm)[:, 0]
        ratio = (norm / state.base_norm).nan_to_num(1.0)
        forcing = torch.where(state.base_norm.isinf(), 0.3, (0.9 * ratio.square()).clamp(0.01, 0.9))
        forcing = torch.maximum(forcing, least_forcing.clamp(max=0.9))
        scale = torch.maximum(image_norm, torch.linalg.vector_norm(at.z, dim=1))
        positions = torch.arange(state.normal.shape[1], device=norm.device)
        basis = torch.where(mask[:, :, None], 0, state.basis)
        first = torch.where(mask & (positions == 0), 1, 0)[:, :, None]
        return state._replace(
            base=torch.where(mask, at.z, state.base),
            base_image=torch.where(mask, at.fz, state.base_image),
            base_residual=torch.where(mask, at.g, state.base_residual),
            base_norm=torch.where(accepted, norm, state.base_norm),
            length=torch.where(accepted, state.relative_length * scale, state.length),
            forcing=torch.where(accepted, forcing, state.forcing),
            fraction=torch.where(halving, state.fraction / 2, 1.0),
            size=torch.where(accepted, 0, state.size),
            basis=torch.where(first.bool(), unit(at.g, norm)[:, None], basis),
            hessenberg=torch.where(mask[:, :, None], 0, state.hessenberg),
            normal=torch.where(mask, (positions == 0).to(state.normal), state.normal),
        ), halving

    def _probe(self, state: NewtonState, at: Evaluation) -> tuple[NewtonState, Tensor]:
        """Extend the basis of probing rows; return also the rows whose linear system is solved well enough."""
        probing, memory = state.is_probing, state.hessenberg.shape[2]
        image = unit(at.fz - state.base_image, state.length)
        along = products(state.basis, image)
        rest = combine(image, along, state.basis, scale=-1.0)
        along, rest, norm = orthogonalize_again(state.basis, along, rest)
        size = torch.where(probing, state.size + 1, state.size)
        # The new entries go to row and column `size` of each probing sample, elsewhere everything stays.
        positions = torch.arange(memory + 1, device=image.device)
        is_new = probing[:, None] & (positions == size[:, None])
        column = along + is_new * norm[:, None]
        is_column = probing[:, None] & (positions[:-1] == state.size[:, None])
        last = state.normal.gather(1, state.size[:, None])[:, 0]
        cosine, sine = rotation(state.normal, last, along, norm)
        normal = torch.where(probing[:, None], state.normal * cosine[:, None] + is_new * sine[:, None], state.normal)
        is_enough = (normal[:, 0].abs() <= state.forcing) | (size >= memory)
        # The last evaluation is never spent on a probe: a candidate may be the answer, a probe only informs.
        is_last = at.num_left <= 1
        solved = (probing & is_enough) | (is_last & (probing | (size == 0)))
        return state._replace(
            basis=torch.where(is_new[:, :, None], unit(rest, norm)[:, None], state.basis),
            hessenberg=torch.where(is_column[:, None], column[:, :, None], state.hessenberg),
            normal=normal,
            size=size,
        ), solved


_MEMORY, _SMALL = 10, 40
