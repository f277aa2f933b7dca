"""The layer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._fixed_point import check_methods, fixed_point
from .._internal.trees import leaves, map_tensors
from .._internal.unsupported import outside_of_graphs
from ..adjoints import AbstractAdjoint, Implicit
from ..equilibrium import Equilibrium, SolveStats, check_map, not_a_map
from ..solvers import AbstractSolver, Anderson
from ..solvers._compiled import CompiledMap


class DEQ(nn.Module):
    """A deep equilibrium layer: one cell, solved to its fixed point z = cell(z, *inputs).

    `layer(x)` returns the state, so that the layer works in `nn.Sequential`; `layer.solve(x)` returns the equilibrium
    with statistics of the solve. Gradients depend on grad mode only, not on train or eval mode, and nothing is stored
    under `torch.no_grad()`.

    Args:
        cell: Maps (z, *inputs) to a new z. Pass everything that differs between samples as an input;
            `VariationalDropout` handles its masks itself.
        solver: How to find the fixed point.
        adjoint: How to differentiate it.
        init: Maps the inputs to the state to start from; by default zeros like the first input.
        compact: Whether finished samples leave the batch; see `fixed_point`.
        compile: Whether to compile the solve with `torch.compile`, a few steps at a time; the code serves every budget
            and tolerance. A string is the mode of `torch.compile`, such as "reduce-overhead" for CUDA graphs. The
            implicit gradient and the exact Jacobian penalty keep using the cell itself, as compiled code has no double
            backward.
        batch_dims: 1 if dim 0 is a batch of samples, 0 if the whole state is one sample; see `fixed_point`.

    Example:
        >>> class Cell(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = nn.Linear(4, 4)
        ...     def forward(self, z, x):
        ...         return torch.tanh(self.linear(z) + x)
        >>> layer = DEQ(Cell(), solver=Anderson(max_evals=12, tol=1e-3))
        >>> layer(torch.ones(2, 4)).shape
        torch.Size([2, 4])
        >>> layer.solve(torch.ones(2, 4)).stats.converged.tolist()
        [True, True]
        >>> nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 1))(torch.ones(2, 3)).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        cell: nn.Module,
        *,
        solver: AbstractSolver = Anderson(),  # noqa: B008 (frozen)
        adjoint: AbstractAdjoint = Implicit(),  # noqa: B008 (frozen)
        init: Callable[..., Any] | None = None,
        compact: bool | None = None,
        compile: bool | str = False,
        batch_dims: int = 1,
    ) -> None:
        super().__init__()
        if isinstance(cell, type) or not callable(cell):
            raise TypeError(not_a_map("cell", cell, "a module"))
        check_map(cell)
        check_methods(solver, adjoint)
        self.cell = cell
        self.solver = solver
        self.adjoint = adjoint
        self.init = init
        self.compact = compact
        self.compiles = compile
        self.batch_dims = batch_dims
        self._compiled: list[CompiledMap] = []

    def forward(
        self,
        *inputs: Any,
        z0: Any = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
    ) -> Any:
        """Return the state at the equilibrium.

        Args:
            *inputs: Further arguments of the cell, batched along dim 0.
            z0: State to start from, instead of what `init` returns.
            solver: Solver for this call instead of the layer's own, such as one with another budget or tolerance.
            adjoint: Adjoint for this call instead of the layer's own.
        """
        return self.solve(*inputs, z0=z0, solver=solver, adjoint=adjoint).z

    @outside_of_graphs
    def solve(
        self,
        *inputs: Any,
        z0: Any = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
        states_at: Sequence[int] = (),
    ) -> Equilibrium[Any, SolveStats]:
        """Return the equilibrium: the state, and how it was reached.

        Args:
            *inputs: Further arguments of the cell, batched along dim 0.
            z0: State to start from, instead of what `init` returns.
            solver: Solver for this call instead of the layer's own, such as one with another budget or tolerance.
            adjoint: Adjoint for this call instead of the layer's own.
            states_at: Numbers of evaluations whose results are kept as `eq.states`; see `fixed_point`.
        """
        try:
            return fixed_point(
                self.cell,
                self.initial_state(*inputs) if z0 is None else z0,
                *inputs,
                solver=self.solver if solver is None else solver,
                adjoint=self.adjoint if adjoint is None else adjoint,
                compact=self.compact,
                states_at=states_at,
                compile=self._code(),
                batch_dims=self.batch_dims,
            )
        except RuntimeError as error:
            is_about_form = any(word in str(error) for word in ("shape", "size", "dtype"))
            if sys.version_info >= (3, 11) and is_about_form and z0 is None and self.init is None:
                error.add_note(
                    f"The state of this layer starts as zeros like the first input, {_kind(inputs[0])}. If the "
                    "cell's state is different, pass z0=... or DEQ(init=...), or encode the input first."
                )
            raise

    def initial_state(self, *inputs: Any) -> Any:
        """Return the state to start from: what `init` returns, or zeros like the first input."""
        if self.init is not None:
            return self.init(*inputs)
        if not inputs:
            raise ValueError("Without inputs, the shape of the state is not known; pass z0=... or DEQ(init=...).")
        if not all(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves(inputs[0])):
            raise TypeError(
                f"The state starts as zeros like the first input, but that is {_kind(inputs[0])}; pass "
                "floating-point tensors, z0=..., or DEQ(init=...)."
            )
        return map_tensors(torch.zeros_like, inputs[0])

    def _code(self) -> CompiledMap | bool:
        if not self.compiles:
            return False
        if not self._compiled:
            # In a list, as a submodule would show up twice in the state dict.
            self._compiled.append(CompiledMap(self.cell, self.compiles if isinstance(self.compiles, str) else None))
        return self._compiled[0]

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled code behind when pickled or copied; it is made again when needed."""
        return {**self.__dict__, "_compiled": []}

    def extra_repr(self) -> str:
        """Show the solver and the adjoint."""
        return f"solver={self.solver}, adjoint={self.adjoint}"


def _kind(tree: Any) -> str:
    """Return dtypes and shapes of an input, or the type of what is not a tensor."""
    return ", ".join(
        f"{leaf.dtype} of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
        for leaf in leaves(tree)
    )
