"""Products with the Jacobian by differences of f, which take no derivative of f."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from .._internal.autocast import state_layout, under_autocast
from .._internal.linearization import CUT, Linearization, constant, first_positive, root_mean_square
from .._internal.trees import check_inputs, map_tensors
from ..equilibrium import Equilibrium, RandomnessWarning
from ._products import check_equilibrium

STEP = 0.1
"""Distance of the two points of a difference, in root mean squares of the state.

Rounding asks for a wide step and curvature for a narrow one: symmetric differences of a smooth f are best at about
eps^(1/3). But where a ReLU switches between the two points, the gradient of their difference jumps by an amount that
does not shrink with the step, and dividing by it leaves noise of the order of (units * step)^(-1/2). At 1e-3, cosines
with the exact gradient were 0.37 for a Transformer cell and 0.09 for a multiscale one; at 0.1 they are 0.98 and 0.78,
or 0.93 for a batch of 32. From there on curvature costs more, whose bias does not average out as noise does. So the
step is the same for all dtypes, and wide enough for half precision.
"""

_ROUNDING = 0.5
"""Rounding of an image, in epsilons of its root mean square: 0.1 to 0.6 on Transformer, multiscale and GELU cells."""


class PrecisionWarning(UserWarning):
    """Issued when a difference of f is mostly rounding, as f computes in half precision and the Jacobian is small."""


class Differences:
    """f around a state, with secants (f(z + h v / 2) - f(z - h v / 2)) / h ≈ J v that have a graph, and products.

    Every evaluation draws the same random numbers, such as dropout masks, from torch's global generators, which
    afterwards are where one evaluation leaves them. The two points are two evaluations and not one of a doubled batch,
    which would draw two masks, mix both in batch norm, and need everything doubled that f closes over.

    Args:
        eq: The equilibrium, whose state is held constant.
    """

    def __init__(self, eq: Equilibrium) -> None:
        check_equilibrium(eq)
        self.layout = state_layout(eq.z, eq.batch_dims)
        check_inputs(eq.inputs, self.layout)
        self._f, self._inputs = under_autocast(eq.f, self.layout), eq.inputs
        self.z = self.layout.pack(map_tensors(Tensor.detach, eq.z))
        self._randomness: tuple[Tensor, tuple[list[int], list[Tensor]]] | None = None
        self._size: Tensor | None = None
        self._image: Tensor | None = None
        self._is_checked = False

    def _evaluate(self, z: Tensor) -> Tensor:
        self._rewind()
        return self.layout.pack_image(self._f(self.layout.unpack(constant(z)), *self._inputs), z.shape[0])

    def _rewind(self) -> None:
        """Have the next evaluation draw what the first one drew."""
        if self._randomness is None:
            self._randomness = torch.get_rng_state(), get_device_states(self.z)
        cpu, (devices, states) = self._randomness
        torch.set_rng_state(cpu)
        set_device_states(devices, states, device_type=self.z.device.type)

    @property
    @torch.no_grad()
    def size(self) -> Tensor:
        """(B, 1) sizes by which steps are measured."""
        if self._size is None:
            size = root_mean_square(self.z)
            self._size = size if bool((size > 0).all()) else first_positive(size, root_mean_square(self.image))
        return self._size

    @property
    def image(self) -> Tensor:
        """f(z), without its graph."""
        if self._image is None:
            with torch.no_grad():
                self._image = self._evaluate(self.z)
        return self._image

    def secant(self, v: Tensor) -> Tensor:
        """Return J v for a (B, D) matrix v without zero rows, with its graph if gradients are on.

        Draw all v before the first call, which notes where the global generators are, for the evaluations to come.
        """
        half = 0.5 * STEP * self.size / root_mean_square(v) * v
        ahead, behind = (self._representable(self.z + sign * half) for sign in (1, -1))
        image, other = self._evaluate(ahead), self._evaluate(behind)
        # What the state's dtype made of the step.
        norms = [torch.linalg.vector_norm(matrix, dim=1, keepdim=True) for matrix in (v, ahead - behind)]
        difference = image - other
        if torch.is_grad_enabled() and not difference.requires_grad and bool(difference.any()):
            raise RuntimeError(CUT)
        if not self._is_checked:
            self._is_checked = True
            self._check(image.detach(), difference.detach(), ahead)
        return difference * (norms[0] / norms[1])

    @torch.no_grad()
    def jvp(self, v: Tensor) -> Tensor:
        """Return J v, without a graph, for one evaluation: (f(z + h v) - f(z)) / h with a step that rounding allows.

        Only gradients of differences suffer where a ReLU switches within the step, so that here it need not be wide:
        sqrt(eps), the best for a difference to one side.
        """
        size = self.size / root_mean_square(v).clamp(min=torch.finfo(v.dtype).tiny)
        ahead = self._representable(self.z + math.sqrt(self.layout.eps) * size * v)
        norms = [torch.linalg.vector_norm(matrix, dim=1, keepdim=True) for matrix in (v, ahead - self.z)]
        image = self.image
        # Spaces that end early go on with zero rows, whose image is zero.
        factor = torch.where(norms[1] > 0, norms[0] / norms[1], 0)
        return (self._evaluate(ahead) - image) * factor

    def vjp(self, u: Tensor) -> Tensor:
        """Return Jᵀu, without a graph, by one evaluation and one backward pass, which is all that compiled code allows.

        Raises:
            RuntimeError: The graph of f is cut, or f is checkpointed by a reentrant function.
        """
        self._rewind()
        point = Linearization(self._f, self.z, self._inputs, self.layout)
        return point.vjp(u, retain_graph=False).detach()

    def _representable(self, z: Tensor) -> Tensor:
        return self.layout.pack(self.layout.unpack(z)) if self.layout.rounds else z

    @torch.no_grad()
    def _check(self, image: Tensor, difference: Tensor, z: Tensor) -> None:
        """Warn where the first difference has little to do with the Jacobian."""
        size, change = (torch.linalg.vector_norm(matrix, dim=1) for matrix in (image, difference))
        # The images of points so close are far apart: a steep f, or one that draws numbers of its own. Where ranks work
        # together nobody asks, as an evaluation that only some of them make would leave the others waiting.
        is_suspect = not _is_distributed() and bool((change > 1.25 * STEP * size).any())
        if is_suspect and bool((self._distance(image, z) > 0.1 * change).any()):
            _warn(
                "f draws random numbers from something other than torch's global generators, so its differences tell "
                "nothing about its Jacobian; draw the random numbers once and pass them as an input.",
                RandomnessWarning,
            )
        elif self.layout.eps > torch.finfo(torch.float32).eps:
            noise = math.sqrt(2) * _ROUNDING * self.layout.eps * size
            # Squares of signal and noise add up.
            if bool(change.square().mean() < 2 * noise.square().mean()):
                _warn(
                    'The Jacobian is so small that estimator="difference" measures mostly the rounding of the half '
                    'precision of f; evaluate f in float32, use estimator="vjp", or end the penalty here.',
                    PrecisionWarning,
                )

    def _distance(self, image: Tensor, z: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self._evaluate(z) - image, dim=1)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _warn(what: str, kind: type[Warning]) -> None:
    """Warn once in a process: Python's own memory of what was said is lost whenever somebody touches its filters."""
    if kind not in _said:
        warnings.warn(what, kind, stacklevel=1)
        _said.add(kind)


_said: set[type[Warning]] = set()
