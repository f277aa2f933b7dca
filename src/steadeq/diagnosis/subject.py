"""A loop with all that a diagnosis asks for, such as a file or another library hands it over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._diagnose import diagnose
from .result import Diagnosis


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A block, its start and its inputs; the fields are arguments of `diagnose`, which says more about them.

    Example:
        >>> import torch
        >>> subject = Subject(f=lambda z, x: 0.5 * z + x, z0=torch.zeros(2, 3), inputs=(torch.eye(3)[:2],))
        >>> subject.diagnose(max_evals=64).settles
        True
    """

    f: Callable[..., Any]
    """The block, called as f(z, *inputs)."""
    z0: Any
    """State to start from."""
    inputs: tuple[Any, ...] = ()
    """What f takes after the state."""
    training_depth: int | None = None
    """Number of evaluations that the block was trained with."""
    metric: Callable[[Any], Any] | None = None
    """Maps a state to a score."""
    metric_name: str = "metric"
    """What the metric is called."""
    higher_is_better: bool = True
    """Whether a larger score is a better one."""
    time_dim: int | None = None
    """Dim of state and inputs that is time, for blocks that should be causal."""
    batch_dims: int = 1
    """1 where dim 0 is a batch of independent samples, 0 where the whole state is one sample."""
    pass_step: bool = False
    """Whether f is called with step=k."""

    def diagnose(self, **options: Any) -> Diagnosis:
        """Return what `diagnose` finds; options are its further arguments."""
        return diagnose(
            self.f,
            self.z0,
            *self.inputs,
            training_depth=self.training_depth,
            metric=self.metric,
            metric_name=self.metric_name,
            higher_is_better=self.higher_is_better,
            time_dim=self.time_dim,
            batch_dims=self.batch_dims,
            pass_step=self.pass_step,
            **options,
        )
