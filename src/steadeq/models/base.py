"""What every model has: a config that holds its sizes, and, around an equilibrium layer, an encoder and a decoder."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from .._internal.trees import leaves
from .._internal.validation import check_count, suggestion
from ..adjoints import AbstractAdjoint
from ..equilibrium import Equilibrium, SolveStats, Status
from ..nn import DEQ, cached_parameters, hold_masks
from ..solvers import AbstractSolver
from .pretrained import PretrainedModel

_C = TypeVar("_C", bound="AbstractModelConfig")


@dataclass(frozen=True, kw_only=True)
class AbstractModelConfig:
    """The sizes of a model, from which it can be built.

    Fields are numbers, strings, booleans, None or tuples of them, so that a config can be written to a file. Lists are
    taken as tuples.

    Example:
        >>> class Affine(PretrainedModel):
        ...     @dataclass(frozen=True, kw_only=True)
        ...     class Config(AbstractModelConfig):
        ...         features: int = 4
        ...     def __init__(self, config=None, **fields):
        ...         super().__init__()
        ...         self.config = Affine.Config.resolve(config, fields)
        ...         self.linear = nn.Linear(self.config.features, self.config.features)
        ...     def forward(self, x):
        ...         return self.linear(x)
        >>> Affine(features=3).config
        Affine.Config(features=3)
        >>> Affine.Config(features=3).build()(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """

    model_class: ClassVar[Callable[..., nn.Module]]
    """The model that is built, filled in by `PretrainedModel`."""

    def __post_init__(self) -> None:
        """Turn lists into tuples; configs that check their fields call this first."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))

    def build(self) -> nn.Module:
        """Return the model, freshly initialized: of the `PretrainedModel` in whose body the config is defined.

        Configs of other modules override it.
        """
        if not hasattr(self, "model_class"):
            raise NotImplementedError(f"{type(self).__qualname__} is in no PretrainedModel and has no `build`.")
        return self.model_class(self)

    @classmethod
    def resolve(cls: type[_C], config: _C | None, fields: dict[str, Any]) -> _C:
        """Return the config of a model that was given a config, some fields, or both.

        Args:
            config: The config; by default one with the default values.
            fields: Values that override those of the config.

        Raises:
            TypeError: The config is of another kind, or a field does not exist.
        """
        if config is not None and not isinstance(config, cls):
            raise TypeError(f"config is {config!r}; it must be a {cls.__qualname__}.")
        names = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in names:
                raise TypeError(f"{name} is not a field of {cls.__qualname__}.{suggestion(name, names)}")
        return cls(**fields) if config is None else dataclasses.replace(config, **fields)

    @classmethod
    def part_of(cls: type[_C], config: _C) -> _C:
        """Return a config of this class with the values of a larger config that extends it.

        Args:
            config: The larger config.
        """
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})


class AbstractEquilibriumModel(PretrainedModel, ABC):
    """A network whose depth is one equilibrium layer: an encoder, the layer, and a decoder.

    A subclass keeps the layer as `layer` and defines `encode` and `decode`; everything else follows from these.

    Example:
        >>> class Cell(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = nn.Linear(4, 4)
        ...     def forward(self, z, x):
        ...         return torch.tanh(self.linear(z) + x)
        >>> class Classifier(AbstractEquilibriumModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.encoder, self.layer, self.decoder = nn.Linear(3, 4), DEQ(Cell()), nn.Linear(4, 2)
        ...     def encode(self, x):
        ...         x = self.encoder(x)
        ...         return torch.zeros_like(x), (x,)
        ...     def decode(self, z):
        ...         return self.decoder(z)
        >>> model = Classifier()
        >>> model(torch.ones(5, 3)).shape
        torch.Size([5, 2])
        >>> output, eq = model.solve(torch.ones(5, 3))
        >>> eq.z.shape
        torch.Size([5, 4])
    """

    layer: DEQ
    takes_carry: ClassVar[bool] = False
    """Whether `solve`, `unroll` and `forward` take the `carry` of the segment before, as language models do."""

    @abstractmethod
    def encode(self, x: Any, /) -> tuple[Any, tuple[Any, ...]]:
        """Return the state to start from, and what the cell takes after the state.

        Args:
            x: A batch of inputs.
        """

    @abstractmethod
    def decode(self, z: Any, /) -> Any:
        """Return the output at a state.

        Args:
            z: The state.
        """

    def forward(
        self,
        x: Any,
        /,
        *,
        z0: Any = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
    ) -> Any:
        """Return the output at the equilibrium.

        Args:
            x: A batch of inputs.
            z0: State to start from, instead of the one that `encode` returns.
            solver: Solver for this call instead of the layer's own.
            adjoint: Adjoint for this call instead of the layer's own.
        """
        return self.solve(x, z0=z0, solver=solver, adjoint=adjoint)[0]

    def solve(
        self,
        x: Any,
        /,
        *,
        z0: Any = None,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
        states_at: Sequence[int] = (),
    ) -> tuple[Any, Equilibrium]:
        """Return the output, and the equilibrium that it was decoded from.

        Args:
            x: A batch of inputs.
            z0: State to start from, instead of the one that `encode` returns.
            solver: Solver for this call instead of the layer's own.
            adjoint: Adjoint for this call instead of the layer's own.
            states_at: Numbers of evaluations whose results are kept as `eq.states`; see `fixed_point`. `decode` makes
                outputs of them.
        """
        start, inputs = self.encode(x)
        start = start if z0 is None else z0
        eq = self._solve_layer(start, inputs, solver=solver, adjoint=adjoint, states_at=states_at)
        return self.decode(eq.z), eq

    def unroll(self, x: Any, /, depth: int) -> tuple[Any, Equilibrium]:
        """Apply the cell a number of times from its start, as a deep network with tied layers would.

        Args:
            x: A batch of inputs.
            depth: How often the cell is applied.

        Returns:
            The output, and the last state as an `Equilibrium`, whose residual is how much the last application still
            moved the state.
        """
        eq = self._unroll_layer(*self.encode(x), depth)
        return self.decode(eq.z), eq

    def _solve_layer(
        self,
        z0: Any,
        inputs: tuple[Any, ...],
        *,
        solver: AbstractSolver | None,
        adjoint: AbstractAdjoint | None,
        states_at: Sequence[int] = (),
    ) -> Equilibrium:
        # Where backward passes evaluate the cell again, nothing is cached any more.
        retraces = (adjoint or self.layer.adjoint).retraces
        with nullcontext() if retraces else cached_parameters(self.layer.cell):
            return self.layer.solve(*inputs, z0=z0, solver=solver, adjoint=adjoint, states_at=states_at)

    def _unroll_layer(self, z0: Any, inputs: tuple[Any, ...], depth: int) -> Equilibrium:
        check_count("depth", depth)
        cell = hold_masks(self.layer.cell)
        previous = z0
        with cached_parameters(self.layer.cell):
            for _ in range(depth - 1):
                previous = cell(previous, *inputs)
        # By itself, as the residual compares the state before it with the one after it.
        z = cell(previous, *inputs)
        return Equilibrium(cell, z, inputs, stats=_unrolled_stats(z, previous, depth))


@torch.no_grad()
def _unrolled_stats(z: Any, previous: Any, depth: int) -> SolveStats:
    """Return the stats of an unrolled network: the relative size of its last step, and no claim to have converged."""
    moved = sum(
        (a.float() - b.float()).flatten(1).square().sum(1) for a, b in zip(leaves(z), leaves(previous), strict=True)
    )
    size = sum(a.float().flatten(1).square().sum(1) for a in leaves(z))
    residual: Tensor = (torch.as_tensor(moved) / torch.as_tensor(size)).sqrt()
    return SolveStats(
        residual=residual,
        num_evals=torch.full_like(residual, depth, dtype=torch.int64),
        status=torch.full_like(residual, int(Status.NOT_MEASURED), dtype=torch.int64),
        trace=residual.new_empty((0, len(residual))),
    )
