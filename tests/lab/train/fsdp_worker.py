"""One process of a job whose parameters are sharded: `python fsdp_worker.py RANK WORLD_SIZE FOLDER`."""

import os
import sys
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[2]))
from lab.train.runs import LineData, Watcher, tiny_config

from steadeq import GMRES, Anderson, ClosedLoop, ConvergenceWarning, Implicit, JacobianRegularizer, ResidualRegularizer
from steadeq.lab.config import LogConfig, LoopConfig, RandomBudget, TrainConfig, WarmupConfig
from steadeq.lab.data import Digits, WikiText2
from steadeq.lab.errors import Interrupted, RunError
from steadeq.lab.optimizers import SGD, Adam
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.train import Process, Trainer
from steadeq.models import ConvDEQ, DEQTransformerLM, MonotoneDEQ

LOG = LogConfig(eval_every=3, checkpoint_every=3, eval_batch_size=600, spectrum_samples=0)

# Sizes that two processes cannot share evenly.
CONV = TrainConfig(
    model=ConvDEQ.Config(channels=5, hidden=7, groups=1),
    data=Digits(),
    optimizer=SGD(learning_rate=0.05, max_grad_norm=1.0),
    solver=Anderson(max_evals=4),
    adjoint=Implicit(GMRES(max_evals=4, tol=1e-4)),
    # Residuals far above rounding and a weight between its limits: the loop multiplies every difference.
    regularizer=JacobianRegularizer(weight=0.2, probability=0.7, schedule=ClosedLoop(target=0.2)),
    budget=RandomBudget(low=-1, high=2),
    loop=LoopConfig(num_steps=6, batch_size=12, ema_decay=0.9),
    log=replace(LOG, spectrum_samples=2, spectrum_products=4),
)
LANGUAGE = TrainConfig(
    model=DEQTransformerLM.Config(
        vocab_size=15, features=8, num_heads=2, hidden_features=13, memory_length=6, std=0.35, dropout=0.1
    ),
    data=WikiText2(length=5),
    optimizer=Adam(learning_rate=1e-2),
    solver=Anderson(max_evals=6),
    adjoint=Implicit(GMRES(max_evals=6, tol=1e-4)),
    regularizer=JacobianRegularizer(weight=0.1, probability=0.5),
    warmup=WarmupConfig(num_steps=2, depth=2),
    loop=LoopConfig(num_steps=7, batch_size=4, accumulate=2, ema_decay=0.9),
    log=LOG,
)
# Some of its parameters are scalars, which have no dimension to be sharded along.
MONOTONE = replace(
    CONV,
    model=MonotoneDEQ.Config(channels=3),
    solver=Anderson(max_evals=6),
    regularizer=JacobianRegularizer(),
    log=LOG,
    loop=replace(CONV.loop, num_steps=4),
)
# Nothing in it depends on how a batch is cut into parts.
REPEATABLE = replace(
    CONV, optimizer=Adam(), regularizer=ResidualRegularizer(weight=0.3), budget=RandomBudget(), log=LOG
)
# A process that leaves samples out makes another pass, of which the other knows nothing.
BAD = tiny_config(
    "synthetic-jr",
    data=LineData(bad=(3, 7, 8)),
    regularizer={"probability": 1.0},
    loop={"num_steps": 4, "num_answers": 2, "ema_decay": 0.9},
)
HALF = replace(
    CONV, loop=replace(CONV.loop, precision="bfloat16", num_steps=3), regularizer=JacobianRegularizer(weight=0.2)
)
RUNS = {"conv": CONV, "language": LANGUAGE, "monotone": MONOTONE, "bad": BAD}


class Collectives(TorchDispatchMode):
    """Counts what the processes do together."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.counts[func.__name__.partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def open_trainer(process: Process, config: TrainConfig, path: Path, *, stop_at: int = -1) -> Trainer:
    """Return the trainer of a run, which goes on from the latest checkpoint if there is one."""
    folder = RunFolder(path)
    if process.is_main and not folder.exists():
        RunFolder.create(path, config)
    process.wait()
    display = Watcher(stop_at=stop_at)
    trainer = display.trainer = Trainer(config, folder, process=process, display=display)
    trainer.resume()
    return trainer


def train(process: Process, config: TrainConfig, path: Path, *, stop_at: int = -1) -> None:
    """Train to the end, or to where the first process is asked to stop."""
    with suppress(Interrupted):
        open_trainer(process, config, path, stop_at=stop_at).train()
    process.wait()


def count_collectives(process: Process, folder: Path) -> dict:
    """Return what a step with many evaluations, forward and backward, makes the processes do together."""
    config = replace(
        LANGUAGE,
        solver=Anderson(max_evals=11, tol=0),
        regularizer=JacobianRegularizer(weight=0.1),
        warmup=WarmupConfig(),
    )
    trainer = open_trainer(process, config, folder / "counted")
    trainer._advance()
    calls = []
    trainer.model.layer.cell.register_forward_hook(lambda *_: calls.append(1))
    with Collectives() as collectives:
        trainer._advance()
    whole = {name for name, p in trainer.model.named_parameters() if not isinstance(p, DTensor)}
    moments = [v for state in trainer.optimizer.state.values() for v in state.values() if v.dim()]
    return {
        "counts": dict(collectives.counts),
        "evals": len(calls),
        "whole": sorted(whole),
        "local": sum(p.to_local().numel() for p in trainer.model.parameters() if isinstance(p, DTensor)),
        "local moments": sum(v.to_local().numel() for v in moments if isinstance(v, DTensor)),
        "total": sum(p.numel() for p in trainer.model.parameters()),
    }


@contextmanager
def full_disk():
    """Let nothing more be written."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    fsync, os.fsync = os.fsync, fail
    try:
        yield
    finally:
        os.fsync = fsync


def fill_disk(process: Process, folder: Path, *, rank: int) -> str:
    """Return what is said when the disk of one process is full at the second checkpoint of a run."""
    path = folder / f"full{rank}"
    train(process, CONV, path, stop_at=1)
    trainer = open_trainer(process, CONV, path)
    trainer._advance()
    try:
        with full_disk() if process.rank == rank else nullcontext():
            trainer._save()
    except RunError as error:
        return str(error)
    return ""


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ConvergenceWarning)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world_size)
    process = Process(rank=rank, world_size=world_size, parallel="fsdp")
    for name, config in RUNS.items():
        train(process, config, folder / name)
    train(process, HALF, folder / "half")
    # In the middle of the second pass over the text, between two checkpoints.
    train(process, LANGUAGE, folder / "language-stopped", stop_at=4)
    train(process, LANGUAGE, folder / "language-stopped")
    train(process, CONV, folder / "conv-stopped", stop_at=4)
    train(process, CONV, folder / "conv-stopped")
    train(process, REPEATABLE, folder / "two-then-one", stop_at=2)
    train(process, REPEATABLE, folder / "one-then-two")
    results = {
        "collectives": count_collectives(process, folder),
        "full": [fill_disk(process, folder, rank=full) for full in range(world_size)],
    }
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
