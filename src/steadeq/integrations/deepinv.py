"""deepinv: an iteration of one of its algorithms as the cell of a `DEQ`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["IterationCell"]


class IterationCell(nn.Module):
    """One step of an algorithm of `deepinv.optim.optim_iterators`, called as cell(x, y).

    In `DEQ(IterationCell(...), init=cell.initial_state)` any solver of steadeq finds the reconstruction, with exact
    gradients for everything that is trained: the denoiser of the prior, the parameters of the algorithm, the physics.

    The iteration must be a map of its first variable alone, as in proximal gradient descent, gradient descent and
    half-quadratic splitting. Others (FISTA, ADMM, Douglas-Rachford, primal-dual) carry a second variable from step to
    step and are refused.

    Args:
        iteration: The iterator, such as `PGDIteration()`.
        data_fidelity: The data fidelity, such as `deepinv.optim.data_fidelity.L2()`.
        prior: The prior, such as `deepinv.optim.prior.PnP(denoiser)`.
        physics: The physics, which maps an image to its measurement.
        params: Parameters of the algorithm by name: "stepsize", "g_param" (the noise level of a denoiser), "lambda",
            "beta". Tensors that require gradients are trained.
    """

    def __init__(
        self,
        iteration: Any,
        data_fidelity: Any,
        prior: Any,
        physics: Any,
        *,
        params: Mapping[str, float | Tensor],
    ) -> None:
        super().__init__()
        name = type(iteration).__name__
        if name not in _SINGLE:
            raise ValueError(f"iteration is {name}; it must be one of {', '.join(_SINGLE)}, which have one variable.")
        self.iteration, self.data_fidelity, self.prior, self.physics = iteration, data_fidelity, prior, physics
        self.params = nn.ParameterDict({k: v for k, v in params.items() if isinstance(v, Tensor) and v.requires_grad})
        self._constants = {"beta": 1.0, "lambda": 1.0, "g_param": None, **params}
        # The value of the objective is of no use in a solve.
        self.iteration.has_cost = False

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the next iterate.

        Args:
            x: The reconstruction.
            y: The measurement.
        """
        params = {**self._constants, **self.params}
        state = {"est": (x, x), "cost": None}
        return self.iteration(state, self.data_fidelity, self.prior, params, y, self.physics)["est"][0]

    def initial_state(self, y: Tensor) -> Tensor:
        """Return where algorithms start: the adjoint of the physics at the measurement.

        Args:
            y: The measurement.
        """
        with torch.no_grad():
            return self.physics.A_adjoint(y)


_SINGLE = ("GDIteration", "PGDIteration", "HQSIteration")
