"""Processes that are lost, disagree or are badly started: the job ends, in time, and its checkpoints are whole."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

from lab.train.runs import latest
from torture import subjects
from torture.process import PATIENCE, command, interpreter

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ODD = ("-1", "2", "7", "one", "", " ", "1.0", "0x1", "99999999999999999999", "١", "nan", "\udcff")
DIFFERENT = {
    "config": """
import os, sys
from steadeq.lab.cli.main import main
sys.exit(main([*sys.argv[1:], "--loop.seed", os.environ["RANK"]]))
""",
    "data": """
import os, sys
os.environ["STEADEQ_DATA"] = f"data{os.environ['RANK']}"
os.environ["XDG_CACHE_HOME"] = f"cache{os.environ['RANK']}"
from steadeq.lab.cli.main import main
sys.exit(main(sys.argv[1:]))
""",
    "version": """
import os, sys, torch
torch.__version__ = torch.torch_version.TorchVersion(f"2.{13 + int(os.environ['RANK'])}.0")
from steadeq.lab.cli.main import main
sys.exit(main(sys.argv[1:]))
""",
}
"""Programs whose processes disagree."""


def attempt_odd(draw: Random, folder: Path) -> None:
    """Start a process with variables that make no sense."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    name = draw.choice(("RANK", "WORLD_SIZE", "MASTER_PORT", "RANK"))
    # So many processes there may be, and the first of them waits for the others.
    fitting = {("WORLD_SIZE", "2"), ("WORLD_SIZE", "7")}
    variables[name] = draw.choice([value for value in ODD if (name, value) not in fitting])
    if name == "MASTER_PORT" or draw.random() < 0.2:
        # Numbers are ports as well as any; without an address nobody can be met.
        del variables[draw.choice(("MASTER_ADDR", "MASTER_PORT"))]
        variables["RANK"] = draw.choice(("-1", "2"))
    environment = {**subjects.environment(folder), **variables}
    arguments = ("train", *subjects.KINDS["plain"], "--out", "run")
    command(*arguments, folder=folder, environment=environment).check(2)
    assert not (folder / "run").exists()


def attempt_pair(draw: Random, folder: Path) -> None:
    """Start two processes, of which one is lost or has another config."""
    draw.choice((_lost, _different))(draw, folder)


def _lost(draw: Random, folder: Path) -> None:
    path, rank, count = folder / "run", draw.randrange(2), draw.randint(3, 12)

    def lose(pid: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while _num_lines(path) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(workers[rank]), signal.SIGKILL)

    steps = ("--loop.num-steps", "100000", "--log.checkpoint-every", "2")
    arguments = (*LAUNCHER, "-m", "steadeq", "train", *subjects.KINDS["plain"], "--out", "run", *steps)
    outcome = interpreter(*arguments, folder=folder, environment=subjects.environment(folder), meanwhile=lose)
    assert outcome.code not in (None, 0), f"exit code {outcome.code}: {outcome.tail}"
    assert latest(path).step >= count // 2 - 1


def _different(draw: Random, folder: Path) -> None:
    what = draw.choice(list(DIFFERENT))
    (folder / "different.py").write_text(DIFFERENT[what])
    for rank in range(2):
        shutil.copytree(subjects.data(), folder / f"data{rank}")
    text = folder / "data1" / "wikitext-2" / "wiki.train.tokens"
    text.write_text(" ".join([*text.read_text().split(), "w1"]) + "\n")
    kind = "text" if what == "data" else "plain"
    arguments = (*LAUNCHER, "different.py", "train", *subjects.KINDS[kind], "--out", "run")
    outcome = interpreter(*arguments, folder=folder, environment=subjects.environment(folder))
    assert outcome.code not in (None, 0), f"exit code {outcome.code}"
    assert "The processes were given different" in outcome.errors, outcome.tail
    assert not (folder / "run").exists()


def _num_lines(path: Path) -> int:
    with contextlib.suppress(OSError):
        return (path / "metrics.jsonl").read_bytes().count(b"\n")
    return 0
