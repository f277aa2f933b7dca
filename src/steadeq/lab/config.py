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
from statistics import mean
from typing import Literal

from ..adjoints import AbstractAdjoint, Implicit
from ..checks import check_count, check_dropout, check_not_negative
from ..jacobian import AbstractRegularizer, JacobianRegularizer
from ..models import AbstractModelConfig
from ..solvers import GMRES, AbstractDepth, AbstractSolver, Anderson
from .data import AbstractDataConfig
from .optimizers import AbstractOptimizer, Adam
from .seeds import derive_seed


@dataclass(frozen=True, kw_only=True)
class RandomBudget:
    """Random changes of the evaluation budget in training, as in the official runs."""

    low: int = 0
    """Least change of the solver's max_evals: on each step a number from low to high is drawn and added to it."""
    high: int = 0
    """Largest change of the solver's max_evals on a step; with low and high at 0 nothing is drawn."""
    when: Literal["always", "penalized"] = "always"
    """Steps on which the budget is drawn: "always" for all, "penalized" for those on which the penalty applies."""
    depth: AbstractDepth | None = None
    """Distribution from which max_evals itself is drawn on each step, instead of low and high; None for no such
    draw."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}; it must be at most high ({self.high}).")

    def draw(self, solver: AbstractSolver, *, seed: int, step: int) -> AbstractSolver:
        """Return the solver with the budget of a step, which is the same on all processes."""
        if self.depth is not None:
            # With a single evaluation, solvers but `Loop` only measure the start, and nothing is learned.
            least = 1 if solver.returns_image else 2
            return solver.with_max_evals(max(self.depth.draw(step, seed=seed), least))
        change = random.Random(derive_seed(seed, "budget", step)).randint(self.low, self.high)
        return solver.with_max_evals(solver.max_evals + change)


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """A first phase in which the cell is unrolled as an ordinary deep network, as in the official runs."""

    num_steps: int = 0
    """Number of training steps of the first phase, which applies the cell a fixed number of times instead of solving; 0
    for no such phase."""
    depth: int = 8
    """Number of times that the cell is applied on each step of the first phase."""
    regularizer_weight: float = 0.0
    """Weight of the penalty (gamma) during the first phase, where it is constant; 0 for no penalty there."""

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps, minimum=0)
        check_count("depth", self.depth)
        check_not_negative("regularizer_weight", self.regularizer_weight)


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """The training loop."""

    num_epochs: int = 10
    """Number of passes over the training data."""
    num_steps: int | None = None
    """Number of optimizer steps, instead of num_epochs; if None, num_epochs decides."""
    batch_size: int = 64
    """Number of samples (for text: streams) in a training batch, over all processes together."""
    num_answers: int = 1
    """Number of solves with a loss on each step; each starts at the detached state of the one before, as recursive
    models train."""
    accumulate: int = 1
    """Number of parts into which each process splits its share of a batch, to save memory; gradients add up to those of
    the whole batch."""
    seed: int = 0
    """Seed of everything random: initial weights, order of the data, dropout, probes and budgets."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network: "bfloat16" runs it under autocast, while the solvers keep float32."""
    compile: bool = False
    """Compile the cell with torch.compile for the evaluations through which no gradient flows."""
    ema_decay: float = 0.0
    """Decay per step of the exponential moving average of the weights that evaluations use; 0 uses the weights as they
    are."""
    max_bad_steps: int = 10
    """Number of steps in a row with a loss or gradient that is not finite after which the run stops; until then they
    are skipped."""
    stop_diverged: bool = False
    """Stop a run that has diverged although its numbers are finite: one whose forward residual is above 0.5, or whose
    loss is worse than for a model that knows only the frequencies of the targets, for 500 steps in a row."""
    device: str = "auto"
    """Device to train on: cpu, cuda, cuda:1 or any other torch device; auto uses a GPU if there is one."""
    init_from: Path | None = None
    """Folder of a run or of a model whose weights training starts from; if None, they are random."""

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
    """Number of steps that each line of metrics.jsonl averages."""
    eval_every: int = 0
    """Number of steps between evaluations on the validation data; 0 for one at the end of each epoch. The last step
    always has one."""
    eval_batch_size: int = 250
    """Number of samples (for text: streams) in an evaluation batch."""
    spectrum_samples: int = 16
    """Number of validation samples for which each evaluation estimates Jacobian norm and spectral radius; 0 for no
    estimates."""
    spectrum_products: int = 40
    """Budget of the estimate of a spectral radius, in vector-Jacobian products."""
    checkpoint_every: int = 0
    """Number of steps between checkpoints; 0 for one at the end of each epoch. The last step always has one."""
    keep_checkpoints: int = 2
    """Number of checkpoints that are kept; older ones are deleted."""
    tensorboard: bool = False
    """Write TensorBoard events, next to metrics.jsonl (needs the extra `tensorboard`)."""
    wandb: bool = False
    """Send metrics to Weights & Biases too (needs the package wandb); WANDB_MODE=offline keeps them in the run's
    folder."""
    mlflow: bool = False
    """Send metrics to MLflow too (needs the package mlflow): to MLFLOW_TRACKING_URI, or else a database in the run's
    folder."""

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
    """Network that is trained."""
    data: AbstractDataConfig
    """Data that the network is trained and evaluated on."""
    optimizer: AbstractOptimizer = field(default_factory=Adam)
    """Optimizer that updates the parameters."""
    solver: AbstractSolver = Anderson(max_evals=12, tol=1e-3)  # noqa: RUF009 (frozen)
    """Solver that finds the equilibrium z = f(z) of the cell f; explicit networks, which have none, do not use it."""
    eval_solver: AbstractSolver | None = None
    """Solver that finds equilibria in evaluation; if None, the one of training."""
    budget: RandomBudget = RandomBudget()
    """Random changes of the solver's budget (max_evals) from one training step to the next."""
    adjoint: AbstractAdjoint = Implicit(GMRES(max_evals=12, tol=1e-4))  # noqa: RUF009 (frozen)
    """Method that computes the gradient through an equilibrium."""
    regularizer: AbstractRegularizer = field(default_factory=JacobianRegularizer)
    """Penalty on the cell at its equilibrium, which keeps solves short; weight 0 switches it off."""
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    """First phase of training, in which the cell is applied a fixed number of times instead of being solved."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """Length, batches, precision and device of the training loop."""
    log: LogConfig = field(default_factory=LogConfig)
    """Records of the run: metrics, evaluations and checkpoints."""

    def __post_init__(self) -> None:
        """Check that the parts go together."""
        for name in ("name", "task"):
            if not hasattr(self.data, name):
                raise ValueError(
                    f"data.{name} is missing; {type(self.data).__name__} needs the class attribute {name}."
                )
        self.adjoint.check_solver(self.solver)
        low, max_evals = self.budget.low, self.solver.max_evals
        if max_evals + low < 1:
            raise ValueError(f"budget.low is {low}; solver.max_evals ({max_evals}) plus it must be at least 1.")
        if self.regularizer.schedule.observes() == "spectral_radius" and not self.log.spectrum_samples:
            raise ValueError(
                "log.spectrum_samples is 0; it must be positive, because the schedule of the regularizer controls the "
                "spectral radius."
            )

    @property
    def evaluation_solver(self) -> AbstractSolver:
        """The solver that evaluations use."""
        return self.solver if self.eval_solver is None else self.eval_solver

    def training_depth(self, step: int) -> int:
        """Return how many evaluations lead to the states of training, at most, and in the mean where that is random.

        Args:
            step: Number of steps that are done; the warmup may have another depth.
        """
        if 0 < step <= self.warmup.num_steps:
            return self.warmup.depth
        depth = self.budget.depth
        if depth is None:
            num_evals = self.solver.max_evals
        else:
            num_evals = round(mean(depth.draw(step, seed=self.loop.seed) for step in range(1000)))
        num_steps = max(self.adjoint.steps_of(self.solver.with_max_evals(num_evals)), 1)
        # Each answer goes on where the last one ended.
        return self.loop.num_answers * num_steps

    def with_max_evals(self, max_evals: int) -> TrainConfig:
        """Return the config with another budget of evaluations, forward and backward."""
        adjoint = self.adjoint.with_solver(lambda solver: solver.with_max_evals(max_evals))
        return replace(self, solver=self.solver.with_max_evals(max_evals), adjoint=adjoint)
