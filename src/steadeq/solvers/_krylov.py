"""Krylov subspaces, one per sample, built side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._window import combine, finite_rows, products, solve_any, to_host, weighted_sum

_NOISE = 10
"""Length, in epsilons of what was taken off a vector, below which what is left of it is rounding."""


class Arnoldi:
    """An orthonormal basis of each sample's Krylov space, and the operator's Hessenberg matrix in it.

    Orthogonalization is classical Gram-Schmidt in three parts. What lies along the newest vector is taken off first, by
    itself: with a skip connection (J = c I + something smaller) that is most of the image, and it costs two vectors to
    read. Then comes a pass over the whole basis, and a second one for rows that the first takes more from than it
    leaves. Without it, each such step would magnify the loss of orthogonality ("twice is enough", with the threshold of
    Daniel, Gragg, Kaufman and Stewart, 1976).

    Args:
        start: (B, D) first vectors; rows need not be normalized, and zero rows stay zero.
        capacity: The largest number of steps.
        may_sync: Whether the host may read the norms, which saves work if no row needs a second pass.
    """

    def __init__(self, start: Tensor, capacity: int, *, may_sync: bool = True) -> None:
        batch_size, dim = start.shape
        self.may_sync = may_sync
        self.size, self.capacity = 0, capacity
        self.norm = torch.linalg.vector_norm(start, dim=1)
        """(B,) norms of the first vectors."""
        self._basis = start.new_empty(batch_size, capacity + 1, dim)
        # Views are made once, as making one costs as much as a small kernel.
        self._vectors = self._basis.unbind(1)
        self._vectors[0].copy_(unit(start, self.norm))
        self._columns: list[Tensor] = []
        self._norms: list[Tensor] = []
        self.is_regular = may_sync
        """Whether it is known that the last step gave every row a new direction far above rounding."""

    @property
    def newest(self) -> Tensor:
        """(B, D) basis vectors to which the operator is applied next."""
        return self._vectors[self.size]

    @property
    def basis(self) -> Tensor:
        """(B, size + 1, D) orthonormal vectors found so far."""
        return self._basis.narrow(1, 0, self.size + 1)

    @property
    def hessenberg(self) -> Tensor:
        """(B, size + 1, size) matrix of the operator in the basis."""
        below = torch.diag_embed(torch.stack(self._norms, dim=1), offset=-1)[:, :, : self.size]
        return below + functional.pad(stack_padded(self._columns), (0, 0, 0, 1))

    def extend(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Take in the operator's image of the newest vector; return the new Hessenberg column.

        That is its (B, size) entries along the basis, and the (B,) norm of what is left.
        """
        basis, newest = self.basis, self.newest
        own = torch.linalg.vecdot(newest, image)
        image = torch.addcmul(image, own.unsqueeze(1), newest, value=-1)
        along = products(basis, image)
        rest = combine(image, along, basis, scale=-1.0)
        norm = torch.linalg.vector_norm(rest, dim=1)
        # What a row must be left with: more than the pass took off, and more than rounding made of the part before it.
        least = torch.add(torch.linalg.vector_norm(along, dim=1), own.abs(), alpha=_NOISE * torch.finfo(own.dtype).eps)
        along.select(1, self.size).add_(own)
        excess = norm - least
        self.is_regular = self.may_sync and to_host(excess.min()) > 0
        if not self.is_regular:
            along, rest, norm = orthogonalize_again(basis, along, rest, is_done=excess > 0)
        self._columns.append(along)
        self._norms.append(norm)
        self.size += 1
        # The same division in both cases, as no row may depend on its neighbors. Without a new direction, or with one
        # that is not finite, the vector is zero, so that what was found before a bad product stays usable.
        length = norm
        if not self.is_regular:
            rest, length = torch.where((norm > 0).unsqueeze(1), rest, 0), torch.where(norm > 0, norm, 1)
        torch.div(rest, length.unsqueeze(1), out=self._vectors[self.size])
        return along, norm

    def restart(self, kept: Tensor) -> None:
        """Shrink the space to an invariant part, so that it can grow again within its capacity (Krylov-Schur).

        That is what (B, size, fewer) orthonormal columns span, of the square part of the Hessenberg matrix; columns of
        zeros stand for none. The matrix still represents the operator in the basis, but its first columns are full.
        """
        hessenberg = self.hessenberg.to(kept)
        square, last = hessenberg[:, : self.size], hessenberg[:, self.size :]
        columns = torch.cat([kept.mT @ square @ kept, last @ kept], dim=1).to(self._basis)
        size, newest = kept.shape[2], self.newest.clone()
        self._basis[:, :size] = kept.mT.to(self._basis) @ self._basis[:, : self.size]
        self._vectors[size].copy_(newest)
        self._columns = list(columns.unbind(2))
        self._norms = [torch.zeros_like(self.norm)] * size
        self.size = size

    def least_norm(self) -> Tensor:
        """Return the least positive entry below the diagonal so far."""
        norms = torch.stack([torch.ones_like(self.norm), *self._norms[:-1]])
        return torch.where(norms > 0, norms, 1).amin(dim=0)


def orthogonalize_again(
    basis: Tensor, along: Tensor, rest: Tensor, *, is_done: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Make the second pass of Gram-Schmidt over (B, columns, D) orthonormal vectors, but for rows that are done.

    Takes (B, columns) what the first pass took off and (B, D) what it left; returns both corrected, and the (B,) norm
    of the latter.
    """
    correction = products(basis, rest)
    if is_done is not None:
        correction = torch.where(is_done.unsqueeze(1), 0, correction)
    rest = combine(rest, correction, basis, scale=-1.0)
    along = along + correction
    norm = torch.linalg.vector_norm(rest, dim=1)
    # What is left of an exhausted space is rounding noise, whose direction must not enter the basis.
    noise = _NOISE * torch.finfo(norm.dtype).eps * torch.linalg.vector_norm(along, dim=1)
    return along, rest, torch.where(norm > noise, norm, 0)


class LeastResidual:
    """The least residual of (I - operator) u = start over each sample's Krylov space.

    The residual lies along the unit vector that is orthogonal to the range of the Hessenberg matrix, and that normal
    follows from its predecessor by one inner product: no rotations, and no factorization until weights are asked for.
    """

    def __init__(self, space: Arnoldi) -> None:
        self._space, self._residuals = space, [space.norm]
        self._normals = [torch.ones_like(space.norm).unsqueeze(1)]

    def extend(self, along: Tensor, norm: Tensor) -> Tensor:
        """Take in a new Hessenberg column of the operator; return the (B,) norm of the least residual."""
        normal = self._normals[-1]
        last = normal.select(1, self._space.size - 1)
        least_norm = None if self._space.is_regular else self._space.least_norm()
        cosine, sine = rotation(normal, last, along, norm, least_norm)
        self._normals.append(torch.cat([normal * cosine.unsqueeze(1), sine.unsqueeze(1)], dim=1))
        self._residuals.append(self._residuals[-1] * cosine)
        return self._residuals[-1]

    def minimize(self, used: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Find the minimizer over the first columns of each sample, as many as it uses: (B,) int64.

        Returns its (B, size) weights on the first basis vectors, its (B, D) residual, and the norm of that with what
        rounding may add to it. The residual is put together from the weights: images are what the Hessenberg matrix
        says of them whether or not the basis is orthogonal, so this is what a product with the operator would show. The
        recurrence promises more where a basis has drifted or a system is nearly singular.
        """
        normal = stack_padded(self._normals).take_along_dim(used[:, None, None], dim=2)[:, :, 0]
        space = self._space
        weights, rest_weights = minimize_residual(space.hessenberg, normal, used, space.norm)
        rest = weighted_sum(rest_weights, space.basis)
        rounding = 4 * torch.finfo(rest.dtype).eps * torch.linalg.vector_norm(weights, dim=1)
        return weights, rest, torch.linalg.vector_norm(rest, dim=1) + rounding

    def step_back(
        self, used: Tensor, found: tuple[Tensor, Tensor, Tensor], is_broken: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give broken samples the minimizer over as many of their first columns as leave the least.

        Of a nearly singular system more columns may leave more than fewer do, once rounding is counted. Takes the most
        columns for each sample and what `minimize` found for these, and returns what it returns.
        """
        kept = found[2]
        residuals = torch.stack(self._residuals, dim=1)
        while True:
            is_broken, used = is_broken & (used > 0), (used - 1).clamp(min=0)
            # So few columns, or fewer, leave at least what the recurrence promises for them.
            is_broken = is_broken & ~(kept <= residuals.take_along_dim(used[:, None], dim=1)[:, 0])
            if not to_host(is_broken.any()):
                return found
            fewer = self.minimize(used)
            is_better = is_broken & ~(kept <= fewer[2])
            weights, rest = (torch.where(is_better[:, None], fewer[part], found[part]) for part in (0, 1))
            kept = torch.where(is_better, fewer[2], kept)
            found = weights, rest, kept


def minimize_residual(hessenberg: Tensor, normal: Tensor, used: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Minimize the residual of (I - operator) u = start in Krylov coordinates.

    Takes the operator's (B, size + 1, size) matrix, the (B, size + 1) unit normal of the range of I - operator over the
    columns used, their (B,) number, and the norm of the start. Returns (B, size) weights of the minimizer on the first
    basis vectors, and (B, size + 1) weights of its residual on all.
    """
    size = hessenberg.shape[2]
    eye = torch.eye(size + 1, dtype=hessenberg.dtype, device=hessenberg.device)
    is_used = (torch.arange(size, device=hessenberg.device) < used[:, None])[:, None]
    # An unused column is replaced by the unit vector of the row that it would add, which decouples it.
    columns = torch.where(is_used, eye[:, :size] - hessenberg, eye[:, 1:])
    right = norm[:, None] * eye[0]
    solution = finite_rows(solve_any(torch.cat([columns, normal[:, :, None]], dim=2), right))
    weights = solution[:, :size] * is_used[:, 0]
    rest = torch.baddbmm(right[:, :, None], columns, weights[:, :, None], alpha=-1)[:, :, 0]
    return weights, rest


def rotation(
    normal: Tensor, last: Tensor, along: Tensor, norm: Tensor, least_norm: Tensor | float | None = 1.0
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine by which the normal of a Hessenberg matrix of I - operator turns with a new column.

    Takes the (B, size) normal and its last entry, the column along the basis, the entry below it, and the smallest such
    entry before, by which rounding errors were magnified; None for that if the norm is known to be far above rounding.
    """
    slope = last - torch.linalg.vecdot(normal, along)
    if least_norm is None:
        length = torch.hypot(norm, slope)
        return norm / length, slope / length
    # A slope of rounding noise and a norm of zero: I - operator is singular on the space, and the residual stays.
    eps = torch.finfo(norm.dtype).eps
    noise = 100 * eps * (1 + torch.linalg.vector_norm(along, dim=1)) / least_norm
    is_singular = (norm == 0) & (slope.abs() <= noise)
    norm, slope = torch.where(is_singular, 1, norm), torch.where(is_singular, 0, slope)
    length = torch.hypot(norm, slope)
    # A hair above one where it stays, so that a column that brought nothing is not taken for progress.
    return torch.where(is_singular, 1 + 4 * eps, norm / length), slope / length


def stack_padded(columns: list[Tensor]) -> Tensor:
    """Return the (B, longest, count) matrices of (B, length) columns of growing lengths, with zeros below."""
    return nn.utils.rnn.pad_sequence([column.mT for column in columns]).permute(2, 0, 1)


def unit(vectors: Tensor, norms: Tensor) -> Tensor:
    """Return (B, D) vectors divided by their norms; rows of norm zero become zero, with a derivative of 0 there."""
    is_positive = norms > 0
    return vectors * (is_positive / torch.where(is_positive, norms, 1))[:, None]
