"""The complete description of a run.

A config is made of the objects that the run uses: solver, adjoint, regularizer, optimizer, and the configs of model and
data. Every field is an override on the command line (`--section.field VALUE`, and `--section Class` for another class),
the string below it is its help, and the whole is saved as `config.json` in the run's folder, from which it can be built
again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .._internal.validation import check_count, check_dropout, check_not_negative
from ..adjoints import AbstractAdjoint, Implicit, Shine
from ..jacobian import AbstractRegularizer, ClosedLoop, JacobianRegularizer, StopAfter
from ..models import AbstractModelConfig
from ..solvers import GMRES, AbstractDepth, AbstractSolver, Anderson, Broyden
from .data import AbstractDataConfig
from .optimizers import AbstractOptimizer, Adam
from .seeds import derive_seed


@dataclass(frozen=True, kw_only=True)
class RandomBudget:
    """Random changes of the evaluation budget in training, as in the official runs."""

    low: int = 0
    """The least that is added to the solver's max_evals."""
    high: int = 0
    """The most that is added to the solver's max_evals."""
    when: Literal["always", "penalized"] = "always"
    """On which steps it is drawn: on all, or on those with a penalty."""
    depth: AbstractDepth | None = None
    """Distribution of the budget itself, in the place of changes to it."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}; it must be at most high ({self.high}).")

    def draw(self, solver: AbstractSolver, *, seed: int, step: int) -> AbstractSolver:
        """Return the solver with the budget of a step, which is the same on all processes."""
        if self.depth is not None:
            # With a single evaluation, which tells the residual, the start is returned and nothing is learned.
            return replace(solver, max_evals=max(self.depth.draw(step, seed=seed), 2))
        change = random.Random(derive_seed(seed, "budget", step)).randint(self.low, self.high)
        return replace(solver, max_evals=solver.max_evals + change)


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """A first phase in which the cell is unrolled as an ordinary deep network, as in the official runs."""

    num_steps: int = 0
    """Number of training steps of this phase."""
    depth: int = 8
    """How often the cell is applied."""
    regularizer_weight: float = 0.0
    """gamma during this phase, held constant; all else about the regularizer is that of the other phase."""

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps, minimum=0)
        check_count("depth", self.depth)
        check_not_negative("regularizer_weight", self.regularizer_weight)


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """The training loop."""

    num_epochs: int = 10
    """Passes over the training data."""
    num_steps: int | None = None
    """Optimizer steps; takes the place of num_epochs."""
    batch_size: int = 64
    """Samples a step, over all processes."""
    num_answers: int = 1
    """Supervised answers a step: each solve goes on from the state of the one before, without its graph."""
    accumulate: int = 1
    """Parts into which a process splits its share of a batch, to save memory."""
    seed: int = 0
    """Seed of initialization, data order, dropout, probes and budgets."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 runs the network under autocast; solvers keep float32."""
    compile: bool = False
    """Compile the cell for the evaluations of which no gradient is taken."""
    ema_decay: float = 0.0
    """Decay of an exponential moving average of the weights that evaluations use; 0 for none."""
    max_bad_steps: int = 10
    """The run stops after this many steps in a row whose loss or gradient is not finite."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, cuda:1 ..."""
    init_from: Path | None = None
    """Folder of a run, or of a model, whose weights training starts from; random ones if there is none."""

    def __post_init__(self) -> None:
        for name in ("num_epochs", "batch_size", "num_answers", "accumulate", "max_bad_steps"):
            check_count(name, getattr(self, name))
        if self.num_steps is not None:
            check_count("num_steps", self.num_steps)
        check_dropout("ema_decay", self.ema_decay)


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
        for name in ("every", "eval_batch_size", "spectrum_products", "keep_checkpoints"):
            check_count(name, getattr(self, name))
        for name in ("eval_every", "spectrum_samples", "checkpoint_every"):
            check_count(name, getattr(self, name), minimum=0)
        if self.spectrum_samples and self.spectrum_products < 2:
            raise ValueError(
                f"spectrum_products is {self.spectrum_products}; it must be at least 2, or spectrum_samples 0."
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run from its first step to its last."""

    recipe: str = ""
    """Name of the recipe that it began as, or path/to/file.py:function; filled in by whoever builds the recipe."""
    model: AbstractModelConfig
    """The network."""
    data: AbstractDataConfig
    """What it learns from."""
    optimizer: AbstractOptimizer = field(default_factory=Adam)
    """How parameters move."""
    solver: AbstractSolver = Anderson(max_evals=12, tol=1e-3)  # noqa: RUF009 (frozen)
    """How equilibria are found; networks without one do not use it."""
    eval_solver: AbstractSolver | None = None
    """How equilibria are found in evaluation; as in training if not given."""
    budget: RandomBudget = RandomBudget()
    """Random changes of the solver's budget in training."""
    adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=12, tol=1e-4))  # noqa: RUF009 (frozen)
    """How equilibria are differentiated."""
    regularizer: AbstractRegularizer = field(default_factory=JacobianRegularizer)
    """What keeps the Jacobian small."""
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    """A first phase of unrolled training."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """The training loop."""
    log: LogConfig = field(default_factory=LogConfig)
    """What is recorded, and when."""

    def __post_init__(self) -> None:
        """Check that the parts go together."""
        for name in ("name", "task"):
            if not hasattr(self.data, name):
                raise ValueError(
                    f"data.{name} is missing; {type(self.data).__name__} needs the class attribute {name}."
                )
        if isinstance(self.adjoint, Shine) and not isinstance(self.solver, Broyden):
            raise ValueError("adjoint Shine uses what Broyden learned: it needs solver Broyden.")
        low, max_evals = self.budget.low, self.solver.max_evals
        if max_evals + low < 1:
            raise ValueError(f"budget.low is {low}; solver.max_evals ({max_evals}) plus it must be at least 1.")
        schedule = self.regularizer.schedule
        loop = schedule.schedule if isinstance(schedule, StopAfter) else schedule
        if isinstance(loop, ClosedLoop) and loop.observed == "spectral_radius" and not self.log.spectrum_samples:
            raise ValueError(
                "log.spectrum_samples is 0; the schedule of the regularizer holds a spectral radius, and needs some."
            )

    @property
    def evaluation_solver(self) -> AbstractSolver:
        """The solver that evaluations use."""
        return self.solver if self.eval_solver is None else self.eval_solver

    def with_max_evals(self, max_evals: int) -> TrainConfig:
        """Return the config with another budget of evaluations, forward and backward."""
        adjoint = self.adjoint
        if isinstance(adjoint, Implicit):
            adjoint = replace(adjoint, solver=replace(adjoint.solver, max_evals=max_evals))
        return replace(self, solver=replace(self.solver, max_evals=max_evals), adjoint=adjoint)
