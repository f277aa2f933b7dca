"""`Monitor`, which collects penalty and statistics of the solves of a training step."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from .._internal.trees import leaves
from .._internal.validation import check_count
from .._internal.watching import watch_solves
from ..equilibrium import Equilibrium, Status
from ..jacobian import AbstractRegularizer, spectral_radius


class Monitor:
    """Watches the solves of a training step: their penalty, and numbers to log.

    Between `begin` and `end`, the monitor records every solve with gradients, wherever in the model it happens.
    `penalty` returns the term to add to the loss. `end` returns the numbers to log, and passes measurements to the
    regularizer for a closed loop. In a distributed run the numbers are means over the processes.

    A monitor has `state_dict` and `load_state_dict`, so that `accelerator.register_for_checkpointing(monitor)` saves
    the state of the regularizer.

    Args:
        regularizer: The regularizer; None for no penalty.
        radius_every: Number of steps between two estimates of the spectral radius; 0 for none.
        num_products: Budget of an estimate of the spectral radius, in vector-Jacobian products with the whole batch.

    Example:
        >>> from steadeq import DEQ, JacobianRegularizer
        >>> class Cell(torch.nn.Linear):
        ...     def forward(self, z, x):
        ...         return torch.tanh(super().forward(z) + x)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), DEQ(Cell(4, 4)), torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> monitor = Monitor(JacobianRegularizer(weight=0.1))
        >>> for step in range(2):
        ...     monitor.begin(step)
        ...     loss = model(torch.ones(3, 2)).square().mean() + monitor.penalty()
        ...     loss.backward()
        ...     optimizer.step()
        ...     numbers = monitor.end()
        >>> numbers["converged"], sorted(numbers)[:4]
        (1.0, ['backward_evals', 'backward_residual', 'converged', 'diverged'])
    """

    def __init__(
        self, regularizer: AbstractRegularizer | None = None, *, radius_every: int = 0, num_products: int = 40
    ) -> None:
        check_count("radius_every", radius_every, minimum=0)
        check_count("num_products", num_products, minimum=2)
        self.regularizer, self.radius_every, self.num_products = regularizer, radius_every, num_products
        self.step: int | None = None
        """The step that is being watched; None between steps."""
        self._watching: AbstractContextManager[None] | None = None
        self._solved: list[Equilibrium] = []
        self._num_penalized = 0
        self._terms: list[Tensor] = []
        self._radii: list[Tensor] = []

    def begin(self, step: int) -> None:
        """Watch the solves of a step; a step that was not ended, for example after an error, is discarded.

        Args:
            step: The training step, in steps of the optimizer, on which schedules of the regularizer depend.
        """
        self._forget()
        self.step = step
        self._watching = watch_solves(self._note)
        self._watching.__enter__()

    def penalty(self, task_loss: Tensor | float | None = None) -> Tensor:
        """Return the term to add to the loss: the sum over the equilibria since the last call, or 0.

        Args:
            task_loss: The loss that the term is added to, for the guard of `ClosedLoop`.

        Raises:
            RuntimeError: No step was begun, or nothing was solved in it.
        """
        if self.step is None:
            raise RuntimeError("Monitor.penalty() was called outside of a step: call monitor.begin(step) before it.")
        fresh = self._solved[self._num_penalized :]
        if not fresh:
            raise RuntimeError(
                "Monitor.penalty() found no solve with gradients since the step began or it was last called: call it "
                "once after each forward pass of a model that solves for an equilibrium."
            )
        self._num_penalized = len(self._solved)
        if self.regularizer is None:
            return torch.zeros(())
        term = torch.stack([self.regularizer(eq, step=self.step, task_loss=task_loss) for eq in fresh]).sum()
        self._terms.append(term.detach())
        return term

    def end(self) -> dict[str, float]:
        """Stop watching, and return the numbers of the step by name; to be called after the backward pass.

        Evaluations and residuals of the forward and the backward solves are means over their samples, `converged`,
        `max_evals` and so on are the shares of samples that ended with this status. `penalty` is the term that was
        added, as a mean over the forward passes of the step, `gamma` its weight, and `spectral_radius` the mean of the
        estimates. Numbers that were not measured are left out; without a solve the dict is empty.

        Raises:
            RuntimeError: No step was begun.
        """
        if self.step is None:
            raise RuntimeError("Monitor.end() was called without monitor.begin(step).")
        try:
            numbers = self._mean_over_processes(self._numbers(self.step)) if self._solved else {}
            if self.regularizer is not None and numbers:
                self.regularizer.observe(
                    residual=numbers.get("forward_residual"),
                    evals=numbers.get("forward_evals"),
                    spectral_radius=numbers.get("spectral_radius"),
                )
        finally:
            self._forget()
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: the state of the regularizer."""
        return {} if self.regularizer is None else self.regularizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        if self.regularizer is not None:
            self.regularizer.load_state_dict(state)

    def _numbers(self, step: int) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, stats in (
            ("forward", [eq.stats for eq in self._solved if eq.stats is not None]),
            ("backward", [eq.backward for eq in self._solved if eq.backward is not None]),
        ):
            if not stats:
                continue
            numbers[f"{name}_evals"] = float(torch.cat([s.num_evals for s in stats]).double().mean())
            residual = torch.cat([s.residual for s in stats]).double()
            if not bool(residual.isnan().any()):
                numbers[f"{name}_residual"] = float(residual.mean())
            if name == "forward":
                status = torch.cat([s.status for s in stats])
                numbers |= {s.name.lower(): float((status == s).double().mean()) for s in Status}
        if self.regularizer is not None:
            numbers["gamma"] = self.regularizer.gamma(step)
        if self._terms:
            numbers["penalty"] = float(torch.stack(self._terms).mean())
        if self._radii:
            numbers["spectral_radius"] = float(torch.cat(self._radii).mean())
        return numbers

    def _note(self, eq: Equilibrium) -> None:
        self._solved.append(eq)
        if self.step is not None and self.radius_every and self.step % self.radius_every == 0:
            # Now, as the weights will be others at the end of the step; and from a source of its own, so that looking
            # changes nothing.
            generator = torch.Generator(leaves(eq.z)[0].device).manual_seed(self.step)
            self._radii.append(spectral_radius(eq, max_products=self.num_products, generator=generator).value)

    def _mean_over_processes(self, numbers: dict[str, float]) -> dict[str, float]:
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return numbers
        device = self._solved[0].stats.residual.device if self._solved[0].stats is not None else None
        packed = torch.tensor(list(numbers.values()), dtype=torch.float64, device=device)
        dist.all_reduce(packed)
        return dict(zip(numbers, (packed / dist.get_world_size()).tolist(), strict=True))

    def _forget(self) -> None:
        if self._watching is not None:
            self._watching.__exit__(None, None, None)
        self._watching, self.step = None, None
        self._solved, self._terms, self._radii, self._num_penalized = [], [], [], 0
