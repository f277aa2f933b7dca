"""Runs to attack: tiny ones of all kinds, made once and copied for each try."""

import atexit
import shutil
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

from lab.data.published import write_words
from lab.train.runs import assert_same, final_state
from torture.process import Outcome, command

INTERVAL = 3
"""Steps from one checkpoint to the next."""
_SMALL = (
    *("--loop.num-steps", "8", "--loop.batch-size", "16", "--loop.device", "cpu"),
    *("--log.eval-every", "4", "--log.checkpoint-every", str(INTERVAL), "--log.spectrum-samples", "0"),
)
_TEXT = (
    *("--model.vocab-size", "15", "--model.cutoffs", "5", "--model.features", "8", "--model.num-heads", "2"),
    *("--model.hidden-features", "12", "--model.memory-length", "6", "--data.length", "5"),
    *("--warmup.num-steps", "2", "--solver.max-evals", "4"),
)
KINDS = {
    "plain": ("synthetic-jr", *_SMALL),
    "images": ("digits-jr", *_SMALL, "--model.channels", "4", "--model.hidden", "4", "--solver.max-evals", "4"),
    "text": ("wikitext2-deq-post-jr-cpu", *_SMALL, *_TEXT, "--loop.batch-size", "4", "--log.eval-batch-size", "3"),
    "closed-loop": (
        *("synthetic-jr", *_SMALL, "--solver.max-evals", "3", "--regularizer.probability", "1", "--log.every", "3"),
        *("--regularizer.schedule", "ClosedLoop", "--regularizer.schedule.target", "1e-4"),
    ),
    "accumulating": ("synthetic-jr", *_SMALL, "--loop.accumulate", "4", "--loop.ema-decay", "0.9", "--log.every", "2"),
}
"""The arguments of `steadeq train` for each kind of run."""

_making, _writing = threading.Lock(), threading.Lock()


def environment(folder: Path) -> dict[str, str | None]:
    """Return variables by which a child finds the data of these runs, and keeps its caches to itself."""
    return {"STEADEQ_DATA": str(data()), "XDG_CACHE_HOME": str(folder / "cache"), "TERM": "dumb", "COLUMNS": "200"}


def train(kind: str, path: Path, *more: str, hook: tuple[Any, ...] = (), **options) -> Outcome:
    """Train or resume a run in a child, beside its folder, with a record of the steps that it makes."""
    options = {"folder": path.parent, "environment": environment(path.parent), **options}
    options["hook"] = (record_steps, str(_record_of(path)), hook)
    return command("train", KINDS[kind][0], "--resume", "--out", path.name, *KINDS[kind][1:], *more, **options)


def finished(kind: str) -> Path:
    """Return a run that nobody disturbed."""
    with _making:
        return _made(kind, None)


def stopped(kind: str) -> Path:
    """Return the same run as a crash after step 7 left it: with checkpoints of the steps 3 and 6."""
    with _making:
        return _made(kind, 7)


def copy_of(path: Path, folder: Path) -> Path:
    """Return a copy of a run to do harm to."""
    return Path(shutil.copytree(path, folder / "run", symlinks=True))


def assert_ends_like(path: Path, kind: str, *, with_metrics: bool = True) -> None:
    """Check that a run has the weights, and all else that a checkpoint holds, of one that nobody disturbed."""
    actual, expected = final_state(path), _ending(kind)
    if not with_metrics:
        actual, expected = ({k: v for k, v in state.items() if k != "metrics"} for state in (actual, expected))
    assert_same(actual, expected)


def assert_progress(path: Path, *, is_saved: bool = False) -> None:
    """Check that the last session of a run, if it made a step, lost at most one interval of those before it.

    A checkpoint is whole before the next step is made. Where the run said that its state is saved, nothing is lost.
    """
    sessions = [[int(step) for step in line.split()] for line in _record_of(path).read_text().split("start\n")]
    last, before = sessions[-1], [steps for steps in sessions[:-1] if steps]
    if before and last:
        reached = before[-1][-1]
        least = reached if is_saved else INTERVAL * ((reached - 1) // INTERVAL)
        assert last[0] - 1 >= least, f"resumed at step {last[0] - 1} after step {reached}; at least {least} was saved"


def record_steps(record: str, hook: tuple[Any, ...]) -> None:
    """Have this process note each step that it makes; then call a hook."""
    from steadeq.lab.train import Trainer

    plain = Trainer._advance
    with open(record, "a") as file:
        file.write("start\n")

    def advance(self: Any) -> bool:
        result = plain(self)
        with open(record, "a") as file:
            file.write(f"{self.step}\n")
        return result

    Trainer._advance = advance
    if hook:
        hook[0](*hook[1:])


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.steps")


def data() -> Path:
    """Return a folder of data with a small text where WikiText-2 is looked for."""
    with _writing:
        return _written_data()


@cache
def _written_data() -> Path:
    folder = _workshop() / "data"
    write_words(folder / "wikitext-2")
    return folder


@cache
def _made(kind: str, crash_at: int | None) -> Path:
    path = _workshop() / f"{kind}-{crash_at or 'finished'}"
    if crash_at is None:
        train(kind, path).check(0)
    else:
        outcome = train(kind, path, hook=(die_at_step, crash_at))
        assert outcome.code == -9, outcome.tail
    return path


@cache
def _ending(kind: str) -> dict:
    return final_state(finished(kind))


@cache
def _workshop() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="torture-subjects-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def die_at_step(number: int) -> None:
    """Have this process killed in the step of some number, counted from 1."""
    from torture.kills import kill_at

    kill_at("step", number, False)
