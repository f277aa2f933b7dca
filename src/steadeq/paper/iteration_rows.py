"""What the study of iteration compares: tasks, networks, how each is trained, and what is done to keep it stable.

Everything here was committed before the runs of the study were made; docs/results/iteration.md says why it is so.

* A row is a network and at most one stabilizer. All networks of a task have the same number of parameters, up to 10%,
  and the same training: data, batch size, optimizer, number of steps, and on average the same number of evaluations of
  the block on each step. What a stabilizer adds to a step comes on top.
* Penalties have the weights of docs/stabilize.md, which were chosen on prefix sums with another seed; nothing is
  tuned for a network or a task.
* The study has the seeds 0 to 4 on prefix sums and addition, and 0 to 2 on mazes and Sudokus. Pilots had seed 100 and
  other test samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..adjoints import Implicit, Unrolled
from ..jacobian import (
    AbstractRegularizer,
    ClosedLoop,
    JacobianRegularizer,
    ResidualRegularizer,
    SpectralRegularizer,
)
from ..lab.config import LogConfig, RandomBudget, TrainConfig, WarmupConfig
from ..models import EquilibriumTransformer, LoopedConv, StackedTransformer
from ..solvers import GMRES, Anderson, LogNormalDepth, Loop, UniformDepth
from .variant import Variant

FACTORS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
"""Depths at which runs are tested, in depths of training."""

EXPLICIT, TIED, LOOPED, TWO_STATES = "explicit", "tied", "looped", "two states"
CORE, DEQ = "prelude, core, coda", "DEQ"
TRANSFORMER, LOOPED_TRANSFORMER = "Transformer, explicit", "Transformer, looped"
NORMALIZED_TRANSFORMER = "Transformer, looped and normalized"

NONE, VJP, DIFFERENCE = "as it is", "Jacobian, vjp", "Jacobian, difference"
SPECTRAL, RESIDUAL, CLOSED_LOOP = "spectral radius", "residual", "closed loop"
STARTS, OUTER_NORM = "random starts", "outer norm"
DECAY, SPECTRAL_NORM = "contractive injection", "spectral norm"

PENALTIES: Mapping[str, AbstractRegularizer] = {
    NONE: JacobianRegularizer(weight=0.0),
    VJP: JacobianRegularizer(weight=0.3),
    DIFFERENCE: JacobianRegularizer(weight=0.3, estimator="difference"),
    SPECTRAL: SpectralRegularizer(weight=0.1, probability=0.25),
    RESIDUAL: ResidualRegularizer(weight=1.0),
    CLOSED_LOOP: JacobianRegularizer(weight=0.3, estimator="difference", schedule=ClosedLoop()),
}
CONSTRUCTIONS: Mapping[str, Mapping[str, Any]] = {
    STARTS: {"start_noise": 1.0},
    OUTER_NORM: {"outer_norm": True},
    DECAY: {"recall": "decay"},
    SPECTRAL_NORM: {"spectral_norm": True},
}
STABILIZERS = (*PENALTIES, *CONSTRUCTIONS)

_WIDTHS = {
    # (dims, blocks before and after the loop, recall)
    (1, 0, "concat"): 36,
    (1, 0, "add"): 42,
    (1, 0, "none"): 42,
    (1, 0, "decay"): 38,
    (1, 1, "concat"): 23,
    (1, 1, "decay"): 23,
    (1, 3, "none"): 16,
    (2, 0, "concat"): 24,
    (2, 0, "add"): 25,
    (2, 0, "none"): 25,
    (2, 0, "decay"): 24,
    (2, 1, "concat"): 15,
    (2, 1, "decay"): 15,
    (2, 3, "none"): 10,
}
"""Channels that make the numbers of parameters equal."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task, and what is compared on it."""

    name: str
    recipe: str
    size_field: str
    """Field of the data config that the number of steps grows with."""
    sizes: Mapping[int, int]
    """Number of test samples by size, the size of training first."""
    depth: int
    """Evaluations of a block of one state on each step, on average."""
    networks: Mapping[str, Sequence[str]]
    """Stabilizers by network."""
    seeds: tuple[int, ...] = (0, 1, 2)
    minutes: float
    num_steps: int

    @property
    def is_whole(self) -> bool:
        """Whether all stabilizers are compared."""
        return any(len(found) == len(STABILIZERS) for found in self.networks.values())

    def named(self, network: str, stabilizer: str = NONE) -> str:
        """Return the name of a row."""
        return f"{self.name}: {network}, {stabilizer}" if len(self.networks[network]) > 1 else f"{self.name}: {network}"

    def depth_of(self, network: str) -> int:
        """Return the training depth of a network, in evaluations."""
        # An evaluation applies the block of two states twice.
        return {EXPLICIT: 1, TRANSFORMER: 0, TWO_STATES: self.depth // 2}.get(network, self.depth)

    def variants(self) -> list[Variant]:
        """Return all rows."""
        return [
            Variant(
                self.named(network, stabilizer),
                self.recipe,
                self.depth_of(network),
                self.minutes,
                seeds=self.seeds,
                change=partial(configure, task=self, network=network, stabilizer=stabilizer),
                label=f"iteration-{slug(network)}-{slug(stabilizer)}",
            )
            for network, stabilizers in self.networks.items()
            for stabilizer in stabilizers
        ]


def slug(name: str) -> str:
    """Return a name as part of the name of a folder."""
    return name.lower().replace(",", "").replace(" ", "-")


def configure(config: TrainConfig, *, task: Task, network: str, stabilizer: str) -> TrainConfig:
    """Return the config of a row, given the config of the task's recipe."""
    data: Any = config.data
    config = replace(
        config,
        data=replace(data, **{task.size_field: next(iter(task.sizes))}),
        loop=replace(config.loop, num_steps=task.num_steps),
        log=LogConfig(every=50, eval_every=50, eval_batch_size=256, spectrum_samples=0, keep_checkpoints=1),
    )
    config = _NETWORKS[network](config, task.depth)
    if stabilizer in PENALTIES:
        penalty = PENALTIES[stabilizer]
        warmup = replace(config.warmup, regularizer_weight=penalty.weight)
        config = replace(config, regularizer=penalty, warmup=warmup)
    else:
        config = _with_model(config, **CONSTRUCTIONS[stabilizer])
    if isinstance(config.model, LoopedConv.Config):
        key = config.model.dims, config.model.num_outer_blocks, config.model.recall
        config = _with_model(config, channels=_WIDTHS[key])
    return config


def _with_model(config: TrainConfig, **fields: Any) -> TrainConfig:
    return replace(config, model=replace(config.model, **fields))


def _loop(
    config: TrainConfig, depth: int, *, num_answers: int = 1, last: int | None = None, **fields: Any
) -> TrainConfig:
    """Return a config that makes some answers of as many plain steps, and is validated at the depth of all of them."""
    return replace(
        config,
        solver=Loop(num_steps=depth // num_answers),
        eval_solver=Loop(num_steps=depth),
        adjoint=Unrolled(last=last),
        loop=replace(config.loop, num_answers=num_answers),
        **{"budget": RandomBudget(), **fields},
    )


def _explicit(config: TrainConfig, depth: int) -> TrainConfig:
    """Seven residual blocks with weights of their own, which see 15 positions to each side."""
    return _loop(_with_model(config, num_outer_blocks=3, recall="none"), 1)


def _tied(config: TrainConfig, depth: int) -> TrainConfig:
    """One block at a fixed depth that starts from the input and does not see it again, with the loss at the end."""
    return _loop(_with_model(config, recall="none"), depth)


def _looped(config: TrainConfig, depth: int) -> TrainConfig:
    """Recall and a progressive loss, as in DT-Net: three answers after k steps each, with k drawn anew on each step.

    Gradients go through the steps since the answer before.
    """
    steps = UniformDepth(low=1, high=2 * depth // 3 - 1)
    return _loop(config, depth, num_answers=3, budget=RandomBudget(depth=steps))


def _two_states(config: TrainConfig, depth: int) -> TrainConfig:
    """A latent state and an answer, supervised three times with the states carried on without a graph, as in TRM."""
    return _loop(_with_model(config, num_states=2), depth // 2, num_answers=3)


def _core(config: TrainConfig, depth: int) -> TrainConfig:
    """Own blocks around a looped one, random depth and gradients through the last third of it, as in Huginn."""
    steps = LogNormalDepth(mean=depth, maximum=4 * depth)
    config = _with_model(config, num_outer_blocks=1)
    return _loop(config, depth, last=depth // 3, budget=RandomBudget(depth=steps))


def _deq(config: TrainConfig, depth: int) -> TrainConfig:
    """An equilibrium, after half of the steps as an unrolled network; Anderson's method solves it, in tests too."""
    config = _loop(config, depth)
    assert config.loop.num_steps is not None
    return replace(
        config,
        warmup=WarmupConfig(num_steps=config.loop.num_steps // 2, depth=depth),
        solver=Anderson(max_evals=depth, tol=1e-3),
        eval_solver=Anderson(max_evals=depth, tol=1e-3),
        adjoint=Implicit(GMRES(max_evals=depth, tol=1e-3)),
    )


def _stacked(config: TrainConfig, depth: int) -> TrainConfig:
    """Six blocks with weights of their own."""
    model = config.model
    assert isinstance(model, EquilibriumTransformer.Config)
    fields = {name: getattr(model, name) for name in ("kind", "vocab_size", "num_classes", "rotary_base")}
    small = StackedTransformer.Config(features=32, num_heads=4, hidden_features=48, depth=6, **fields)
    return _loop(replace(config, model=small), depth)


def _looped_transformer(config: TrainConfig, depth: int, *, outer_norm: bool = False) -> TrainConfig:
    """One block with recall at random depths, with or without a normalization of the state."""
    steps = LogNormalDepth(mean=depth, maximum=4 * depth)
    config = _with_model(config, injection="concat", outer_norm=outer_norm)
    return _loop(config, depth, last=depth // 3, budget=RandomBudget(depth=steps))


_NETWORKS: Mapping[str, Callable[[TrainConfig, int], TrainConfig]] = {
    EXPLICIT: _explicit,
    TIED: _tied,
    LOOPED: _looped,
    TWO_STATES: _two_states,
    CORE: _core,
    DEQ: _deq,
    TRANSFORMER: _stacked,
    LOOPED_TRANSFORMER: _looped_transformer,
    NORMALIZED_TRANSFORMER: partial(_looped_transformer, outer_norm=True),
}

_CONV_ROWS = {
    EXPLICIT: (NONE,),
    # There is nothing to inject into a block without recall.
    TIED: tuple(name for name in STABILIZERS if name != DECAY),
    **dict.fromkeys((LOOPED, TWO_STATES, CORE, DEQ), STABILIZERS),
}
_FEW = (NONE, DIFFERENCE, RESIDUAL)

PREFIX_SUMS = Task(
    name="prefix sums",
    recipe="prefix-sums",
    size_field="num_bits",
    sizes={16: 128, 64: 32, 256: 16, 512: 8},
    depth=12,
    networks=_CONV_ROWS,
    seeds=(0, 1, 2, 3, 4),
    minutes=0.7,
    num_steps=400,
)
ADDITION = Task(
    name="addition",
    recipe="addition",
    size_field="num_digits",
    sizes={6: 256, 12: 128, 24: 64, 40: 32},
    depth=12,
    networks={
        TRANSFORMER: (NONE,),
        LOOPED_TRANSFORMER: _FEW,
        NORMALIZED_TRANSFORMER: (*_FEW, CLOSED_LOOP),
    },
    seeds=(0, 1, 2, 3, 4),
    minutes=0.9,
    num_steps=600,
)
MAZES = Task(
    name="mazes",
    recipe="mazes",
    size_field="size",
    sizes={9: 128, 13: 48, 21: 16, 33: 8, 59: 4},
    depth=24,
    networks={EXPLICIT: (NONE,), LOOPED: (*_FEW, OUTER_NORM)},
    minutes=4.0,
    num_steps=1_000,
)
SUDOKU = Task(
    name="Sudoku",
    recipe="sudoku",
    size_field="size",
    sizes={4: 256},
    depth=12,
    networks={TRANSFORMER: (NONE,), NORMALIZED_TRANSFORMER: _FEW},
    minutes=7.0,
    num_steps=5_000,
)
TASKS = (PREFIX_SUMS, ADDITION, MAZES, SUDOKU)
