"""The penalty of the paper: an estimate of the Jacobian's Frobenius norm that can be differentiated."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.autocast import without_autocast
from .._internal.unsupported import outside_of_graphs
from ..equilibrium import Equilibrium
from ._products import Probe, Probes, linearize


@outside_of_graphs
def jacobian_penalty(
    eq: Equilibrium,
    *,
    num_probes: int = 1,
    probe: Probe = "rademacher",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimate the mean over the batch of ‖J‖²_F / d, differentiably (Eq. 4).

    Each probe e costs one vector-Jacobian product: E ‖eᵀJ‖² = ‖J‖²_F (Hutchinson). The gradient reaches the parameters
    of f and the graph of its inputs, with z held constant as in the paper; f is evaluated anew, so whatever made z is
    not touched.

    Args:
        eq: What `fixed_point` or `layer.solve` returned, or `Equilibrium.at(f, z, *inputs)`.
        num_probes: M of the paper; one is about 1% accurate for a usual batch.
        probe: Distribution of the probes. "gaussian" is the paper's; "rademacher" never has more variance.
        generator: Source of randomness.

    Returns:
        A scalar.

    Example:
        >>> W = torch.diag(torch.tensor([0.5, 2.0])).requires_grad_()
        >>> eq = Equilibrium.at(lambda z: z @ W.T, torch.zeros(3, 2))
        >>> jacobian_penalty(eq)  # (0.25 + 4) / 2, exact for a diagonal Jacobian
        tensor(2.1250, grad_fn=<DivBackward0>)
    """
    point = linearize(eq)
    probes = Probes(point.fz, num_probes, probe, generator)
    create_graph = torch.is_grad_enabled()
    total = point.fz.new_zeros(())
    with without_autocast(point.layout):
        for _ in range(num_probes):
            total = total + point.vjp(probes.draw(), create_graph=create_graph).square().sum()
    return total / (num_probes * point.layout.batch_size * point.layout.dim)
