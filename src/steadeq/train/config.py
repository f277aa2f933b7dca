"""The complete description of a run.

Every field is an override on the command line (`--section.field VALUE`), the string below it is its help, and the whole
is saved as `config.json` in the run's folder, from which it can be built again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import tyro
from torch import nn

from ..adjoint import AbstractAdjoint, Implicit, OneStep, Phantom, Shine, Unrolled
from ..data import Splits
from ..errors import InputError
from ..jacobian import Probe
from ..regularizer import AbstractSchedule, ClosedLoop, Constant, Increments, JacobianRegularizer, Linear, StopAfter
from ..solvers import GMRES, AbstractSolver, Anderson, Broyden, NewtonKrylov, Picard
from .checks import check_at_least, check_fraction, check_positive
from .task import AbstractTask


@dataclass(frozen=True, kw_only=True)
class AbstractModelConfig(ABC):
    """Which network; one subclass for each, with the network's arguments as its fields."""

    kinds: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls) -> None:
        """Let `config.json` name the subclass."""
        AbstractModelConfig.kinds[cls.__name__] = cls

    @abstractmethod
    def build(self) -> nn.Module:
        """Return the network, freshly initialized."""


@dataclass(frozen=True, kw_only=True)
class AbstractDataConfig(ABC):
    """Which data; one subclass for each."""

    kinds: ClassVar[dict[str, type]] = {}
    name: ClassVar[str]
    task: ClassVar[AbstractTask]

    def __init_subclass__(cls) -> None:
        """Let `config.json` name the subclass."""
        AbstractDataConfig.kinds[cls.__name__] = cls

    @abstractmethod
    def load(self) -> Splits:
        """Return the data.

        Raises:
            InputError: It is not there, or damaged.
        """


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How parameters move."""

    method: Literal["adam", "adamw", "sgd"] = "adam"
    """The optimizer."""
    learning_rate: float = 1e-3
    """Learning rate at its highest."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from zero."""
    min_learning_rate: float = 0.0
    """Where the cosine ends."""
    weight_decay: float = 0.0
    """L2 penalty on the parameters (decoupled for adamw)."""
    momentum: float = 0.9
    """Of sgd."""
    nesterov: bool = False
    """Whether sgd looks ahead."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of adam and adamw."""
    max_grad_norm: float | None = None
    """Gradients with a larger norm are scaled down to it."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_positive("optimizer", self, "learning_rate")
        check_at_least("optimizer", self, 0, "warmup_steps", "min_learning_rate", "weight_decay")
        check_fraction("optimizer", self, "momentum")
        if self.nesterov and self.momentum == 0:
            raise InputError("optimizer.nesterov needs some optimizer.momentum.")
        if self.max_grad_norm is not None:
            check_positive("optimizer", self, "max_grad_norm")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"optimizer.betas is {self.betas}; both must be in [0, 1).")


@dataclass(frozen=True, kw_only=True)
class ForwardConfig:
    """How equilibria are found."""

    solver: Literal["anderson", "broyden", "picard", "newton-krylov"] = "anderson"
    """The method."""
    max_evals: int = 12
    """Evaluation budget in training."""
    eval_max_evals: int | None = None
    """Evaluation budget in evaluation; the same as in training if not given."""
    tol: float = 1e-3
    """Relative residual at which a sample is finished."""
    memory: int = 6
    """Window of anderson and broyden."""
    jitter: tuple[int, int] = (0, 0)
    """Random training budgets: what is added to max_evals is drawn from this range, both ends included."""
    jitter_when: Literal["always", "penalized"] = "always"
    """On which steps it is drawn."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("forward", self, 1, "max_evals", "memory")
        check_at_least("forward", self, 0, "tol")
        if self.eval_max_evals is not None:
            check_at_least("forward", self, 1, "eval_max_evals")
        low, high = self.jitter
        if low > high or self.max_evals + low < 1:
            raise InputError(
                f"forward.jitter is {low} {high}; it must be a range, and max_evals ({self.max_evals}) plus its "
                "low end must be at least 1."
            )

    def build(self, max_evals: int, tol: float | None = None) -> AbstractSolver:
        """Return the solver with a budget."""
        tol = self.tol if tol is None else tol
        if self.solver == "anderson":
            return Anderson(max_evals=max_evals, tol=tol, memory=self.memory)
        if self.solver == "broyden":
            return Broyden(max_evals=max_evals, tol=tol, memory=self.memory)
        if self.solver == "picard":
            return Picard(max_evals=max_evals, tol=tol)
        return NewtonKrylov(max_evals=max_evals, tol=tol)

    @property
    def evaluation_budget(self) -> int:
        """Evaluations that a solve may spend in evaluation."""
        return self.max_evals if self.eval_max_evals is None else self.eval_max_evals


@dataclass(frozen=True, kw_only=True)
class BackwardConfig:
    """How equilibria are differentiated."""

    adjoint: Literal["implicit", "one-step", "phantom", "shine", "unrolled"] = "implicit"
    """The gradient."""
    solver: Literal["gmres", "broyden", "anderson", "picard"] = "gmres"
    """Of the linear system of the implicit gradient."""
    max_evals: int = 12
    """Its budget of vector-Jacobian products."""
    tol: float = 1e-4
    """Relative residual at which a sample's gradient is finished."""
    num_steps: int = 5
    """Of the phantom gradient."""
    damping: float = 0.5
    """Of the phantom gradient."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("backward", self, 1, "max_evals", "num_steps")
        check_at_least("backward", self, 0, "tol")
        if not 0 < self.damping <= 1:
            raise InputError(f"backward.damping is {self.damping}; it must be in (0, 1].")

    def build(self) -> AbstractAdjoint:
        """Return the adjoint."""
        if self.adjoint == "implicit":
            if self.solver == "gmres":
                return Implicit(GMRES(max_evals=self.max_evals, tol=self.tol, memory=self.max_evals))
            if self.solver == "broyden":
                return Implicit(Broyden(max_evals=self.max_evals, tol=self.tol, memory=self.max_evals))
            method = {"anderson": Anderson, "picard": Picard}[self.solver]
            return Implicit(method(max_evals=self.max_evals, tol=self.tol))
        if self.adjoint == "phantom":
            return Phantom(num_steps=self.num_steps, damping=self.damping)
        return {"one-step": OneStep, "shine": Shine, "unrolled": Unrolled}[self.adjoint]()


@dataclass(frozen=True, kw_only=True)
class JacobianConfig:
    """Jacobian regularization."""

    weight: float = 0.0
    """gamma, or where its schedule begins; 0 turns the penalty off."""
    probability: float = 1.0
    """p: the part of the steps on which the penalty is applied."""
    num_probes: int = 1
    """M: probes of the Hutchinson estimate."""
    probe: Probe = "rademacher"
    """Distribution of the probes; gaussian is the paper's."""
    schedule: Literal["constant", "linear", "increments", "closed-loop"] = "constant"
    """How gamma moves."""
    end: float = 0.0
    """linear: weight at the end of training."""
    increment: float = 0.1
    """increments: what each adds."""
    every: int = 10_000
    """increments: steps between them."""
    begin: int = 0
    """linear and increments: step from which they are counted."""
    stop_step: int | None = None
    """First step without a penalty."""
    stop_epoch: int | None = None
    """First epoch without a penalty, counted from 0."""
    target: float = 1e-2
    """closed-loop: value to hold."""
    measure: Literal["residual"] = "residual"
    """closed-loop: what is held at the target, the relative residual at the training budget."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("jacobian", self, 0, "weight", "end", "begin")
        if not math.isfinite(self.increment):
            raise InputError(f"jacobian.increment is {self.increment}; it must be a finite number.")
        if self.stop_step is not None:
            check_at_least("jacobian", self, 0, "stop_step")
        check_at_least("jacobian", self, 1, "num_probes", "every")
        check_positive("jacobian", self, "target")
        if not 0 <= self.probability <= 1:
            raise InputError(f"jacobian.probability is {self.probability}; it must be in [0, 1].")
        if self.stop_epoch is not None:
            check_at_least("jacobian", self, 0, "stop_epoch")
        if self.schedule == "closed-loop" and (self.stop_step is not None or self.stop_epoch is not None):
            raise InputError("jacobian.stop_step and stop_epoch cannot be combined with the closed-loop schedule.")

    def build(self, num_steps: int, steps_per_epoch: int, seed: int) -> JacobianRegularizer:
        """Return the regularizer of a run of so many steps."""
        schedule: AbstractSchedule | ClosedLoop = Constant()
        if self.schedule == "closed-loop":
            schedule = ClosedLoop(target=self.target, measure=self.measure)
        elif self.schedule == "linear":
            schedule = Linear(end=self.end, num_steps=max(num_steps - self.begin, 1), begin=self.begin)
        elif self.schedule == "increments":
            schedule = Increments(increment=self.increment, every=self.every, begin=self.begin)
        if self.stop_step is not None and isinstance(schedule, AbstractSchedule):
            schedule = StopAfter(step=self.stop_step, schedule=schedule)
        if self.stop_epoch is not None and isinstance(schedule, AbstractSchedule):
            schedule = StopAfter(step=self.stop_epoch * steps_per_epoch, schedule=schedule)
        return JacobianRegularizer(
            self.weight,
            probability=self.probability,
            num_probes=self.num_probes,
            probe=self.probe,
            schedule=schedule,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """A first phase in which the cell is unrolled as an ordinary deep network, as in the official runs."""

    num_steps: int = 0
    """Its length."""
    depth: int = 8
    """How often the cell is applied."""
    jacobian_weight: float = 0.0
    """gamma during this phase; probability and probes are those of the other phase."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("warmup", self, 0, "num_steps", "jacobian_weight")
        check_at_least("warmup", self, 1, "depth")


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """The training loop."""

    num_epochs: int = 10
    """Passes over the training data."""
    num_steps: int | None = None
    """Optimizer steps; takes the place of num_epochs."""
    batch_size: int = 64
    """Samples a step, over all processes."""
    accumulate: int = 1
    """Parts into which a process splits its share of a batch, to save memory."""
    seed: int = 0
    """Of initialization, data order, dropout, probes and budgets."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 runs the network under autocast; solvers keep float32."""
    compile: bool = False
    """Compile the cell for the evaluations of which no gradient is taken."""
    ema_decay: float = 0.0
    """Of an exponential moving average of the weights that evaluations use; 0 for none."""
    max_bad_steps: int = 10
    """The run stops after this many steps in a row whose loss or gradient is not finite."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("loop", self, 1, "num_epochs", "batch_size", "accumulate", "max_bad_steps")
        if self.num_steps is not None:
            check_at_least("loop", self, 1, "num_steps")
        check_fraction("loop", self, "ema_decay")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What is recorded, and when."""

    every: int = 1
    """Steps that one line of metrics.jsonl averages over."""
    eval_every: int = 0
    """Steps between evaluations; 0 for one at the end of each epoch. The last step is always evaluated."""
    eval_batch_size: int = 250
    """Samples a batch in evaluation."""
    spectrum_samples: int = 16
    """Validation samples of which Jacobian norm and spectral radius are estimated at each evaluation; 0 for none."""
    spectrum_products: int = 40
    """Vector-Jacobian products that the spectral radius may cost."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 for one at the end of each epoch. The last step is always saved."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints are kept."""
    tensorboard: bool = False
    """Write TensorBoard events too (needs the extra `tensorboard`)."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("log", self, 1, "every", "eval_batch_size", "spectrum_products", "keep_checkpoints")
        check_at_least("log", self, 0, "eval_every", "spectrum_samples", "checkpoint_every")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run from its first step to its last."""

    recipe: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress]
    """The recipe that it began as."""
    model: AbstractModelConfig
    data: AbstractDataConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    forward: ForwardConfig = field(default_factory=ForwardConfig)
    backward: BackwardConfig = field(default_factory=BackwardConfig)
    jacobian: JacobianConfig = field(default_factory=JacobianConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        """Refuse parts that do not go together."""
        if self.backward.adjoint == "shine" and self.forward.solver != "broyden":
            raise InputError("backward.adjoint shine uses what broyden learned: it needs forward.solver broyden.")
