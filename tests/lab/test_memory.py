"""A lack of memory is told from other errors, and costs a sentence."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from lab.train.runs import environment, tiny_config, train

from steadeq.lab.cli import main as command
from steadeq.lab.cli.main import main
from steadeq.lab.errors import InputError, RunError
from steadeq.lab.memory import lack_of_memory
from steadeq.lab.run import checkpoint as checkpoints
from steadeq.lab.run.checkpoint import Checkpoint, CheckpointFolder
from steadeq.lab.run.folder import RunFolder

ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4000000000 bytes. Error code 12 (Cannot allocate memory)\nframe #0: ..."
)


def wrapped(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


LACKS = {
    "Python": MemoryError(),
    "CPU": RuntimeError(ALLOCATOR),
    "GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free."),
    "system": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "model": wrapped(InputError(f"The model cannot be built: {ALLOCATOR}"), RuntimeError(ALLOCATOR)),
    "run": wrapped(RunError("The run had to stop."), wrapped(RuntimeError("A worker died."), MemoryError())),
}
OTHERS = (
    RuntimeError("The memory format is not contiguous."),
    InputError("There is no recipe 'out of memory'."),
    RunError("out of memory/checkpoints is damaged."),
    wrapped(RuntimeError("a bug"), InputError("There is no file out of memory.")),
)


def starve(error: Exception):
    def run(*arguments, **options):
        raise error

    return run


@pytest.mark.parametrize("kind", LACKS)
def test_a_lack_of_memory_is_one_sentence_with_a_remedy(kind, monkeypatch, capfd):
    monkeypatch.setattr(command, "_load", lambda *_: starve(LACKS[kind]))
    assert main(["train", "synthetic"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("steadeq: There is not enough memory")
    assert "smaller batch" in line
    for word in ("enforce", "alloc_cpu", "DefaultCPUAllocator", "Error code", "GPU 0"):
        assert word not in line
    assert ("4000000000 bytes" in line) == (kind in ("CPU", "model"))
    assert ("2.00 GiB" in line) == (kind == "GPU")


def test_other_errors_stay_what_they_are():
    assert [lack_of_memory(error) for error in OTHERS] == [None] * len(OTHERS)


def test_a_checkpoint_that_does_not_fit_into_memory_is_not_called_damaged(tmp_path, monkeypatch):
    train(tiny_config(), tmp_path / "run")
    for lack in (LACKS["Python"], LACKS["CPU"]):
        monkeypatch.setattr(checkpoints.safetensors.torch, "load_file", starve(lack))
        with pytest.raises(type(lack)):
            # And not the one before it, from which the run would go on.
            RunFolder(tmp_path / "run").checkpoints().load_latest()


def test_a_lack_of_memory_while_saving_leaves_the_earlier_checkpoint_and_nothing_else(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.save(Checkpoint(weights={"w": torch.ones(3)}, average=None, state={"step": 1}))
    monkeypatch.setattr(torch, "save", starve(MemoryError()))
    with pytest.raises(MemoryError):
        folder.save(Checkpoint(weights={"w": torch.ones(3)}, average=None, state={"step": 2}))
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001"]


def test_a_batch_that_no_memory_holds_is_one_sentence(tmp_path):
    # A real allocator that says no, in a process that may have a gigabyte more than it needs.
    code = (
        "import resource, sys, torch\n"
        "from steadeq.lab.cli import train\n"
        "from steadeq.lab.cli.main import main\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (1 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "raise SystemExit(main(sys.argv[1:]))\n"
    )
    sizes = ("--model.hidden", "1000000", "--loop.batch-size", "4096", "--log.spectrum-samples", "0")
    arguments = [sys.executable, "-c", code, "train", "synthetic", "--out", str(tmp_path / "run"), *sizes]
    result = subprocess.run(arguments, env=environment(), capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("steadeq: There is not enough memory (")
