"""The synthetic study (section 5.1, appendix A.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import data, models
from ..errors import InputError
from ..train import (
    AbstractDataConfig,
    AbstractModelConfig,
    BackwardConfig,
    ForwardConfig,
    JacobianConfig,
    LoopConfig,
    OptimizerConfig,
    Regression,
    TrainConfig,
)
from ..train.checks import check_at_least, check_positive
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class ToyModel(AbstractModelConfig):
    """f(z; x) = W2ᵀ ReLU(W1 z + U x + b)."""

    hidden: int = 50
    """Number of ReLUs."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("model", self, 1, "hidden")

    def build(self) -> models.ToyDEQ:
        """Return the network."""
        return models.ToyDEQ(hidden=self.hidden)


@dataclass(frozen=True, kw_only=True)
class SyntheticData(AbstractDataConfig):
    """Noisy values of a cubic with a wave."""

    name = "synthetic"
    task = Regression()

    variant: data.synthetic.Variant = "main-text"
    """The sign of 5x: minus in the main text of the paper, plus in its appendix."""
    noise: float = data.synthetic.NOISE
    """Standard deviation of the noise."""
    radius: float = data.synthetic.RADIUS
    """Inputs are uniform on [-radius, radius]."""
    seed: int = 0
    """Of the data."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("data", self, 0, "noise", "seed")
        check_positive("data", self, "radius")
        if self.seed >= 2**63:
            raise InputError(f"data.seed is {self.seed}; it must be below 2**63.")

    def load(self) -> data.Splits:
        """Return the data."""
        return data.synthetic.generate(variant=self.variant, noise=self.noise, radius=self.radius, seed=self.seed)


@recipe("synthetic", scale="paper")
def synthetic() -> TrainConfig:
    """Scalar function of the synthetic study, as in the main text, without regularization."""
    return TrainConfig(
        recipe="synthetic",
        model=ToyModel(),
        data=SyntheticData(),
        optimizer=OptimizerConfig(method="adam", learning_rate=1e-3, schedule="cosine"),
        forward=ForwardConfig(solver="anderson", max_evals=6, tol=1e-3),
        backward=BackwardConfig(solver="gmres", max_evals=6, tol=1e-4),
        jacobian=JacobianConfig(weight=0.0, probability=0.4),
        loop=LoopConfig(num_epochs=50, batch_size=64),
    )


@recipe("synthetic-jr", scale="paper")
def synthetic_jr() -> TrainConfig:
    """The same with Jacobian regularization, gamma = 4."""
    base = synthetic()
    return replace(base, recipe="synthetic-jr", jacobian=replace(base.jacobian, weight=4.0))


@recipe("synthetic-appendix", scale="paper")
def synthetic_appendix() -> TrainConfig:
    """The target function as printed in the appendix (+5x), without regularization."""
    return replace(synthetic(), recipe="synthetic-appendix", data=SyntheticData(variant="appendix"))


@recipe("synthetic-appendix-jr", scale="paper")
def synthetic_appendix_jr() -> TrainConfig:
    """The same with Jacobian regularization, gamma = 4."""
    return replace(synthetic_jr(), recipe="synthetic-appendix-jr", data=SyntheticData(variant="appendix"))
