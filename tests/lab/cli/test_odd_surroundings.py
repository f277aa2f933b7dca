"""Closed streams, full disks, odd names, numbers and environments get a code and a sentence, never a traceback."""

import errno
import hashlib
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from lab.report.folders import diagnosis
from lab.train.runs import environment, snapshot, tiny_config, train

from steadeq import load_model
from steadeq.lab.cli import main as command
from steadeq.lab.cli.main import main
from steadeq.lab.errors import InputError
from steadeq.lab.report import diagnosis_panels
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunDiagnosis, RunRecord
from steadeq.models import ToyDEQ

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    train(tiny_config(), path)
    return path


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refuse(capfd, *arguments: str, code: int = 2) -> str:
    capfd.readouterr()
    assert main(arguments) == code
    errors = capfd.readouterr().err
    line = errors.splitlines()[-1]
    assert line.startswith("steadeq: ")
    assert "Traceback" not in errors
    return line


# Numbers


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--optimizer.learning-rate", "1e400"),
        ("--optimizer.learning-rate", "1e39"),
        ("--regularizer.weight", "1e300"),
        ("--loop.seed", str(2**70)),
        ("--loop.num-steps", str(2**64)),
        ("--loop.seed", "9" * 5000),
        ("--loop.batch-size", "99999999999999"),
        ("--log.spectrum-products", "99999999999999"),
        ("--log.spectrum-products", "1"),
        ("--solver.max-evals", "99999999999999"),
        ("--adjoint.solver.max-evals", "99999999999999"),
        ("--warmup.depth", "99999999999999"),
        ("--budget.high", "99999999999999"),
    ],
)
def test_values_that_no_machine_can_hold_are_refused_at_the_start(option, value, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    line = refuse(capfd, "train", "synthetic", option, value)
    assert option.rpartition(".")[2] in line.replace("_", "-")
    assert len(line) < 300
    assert snapshot(tmp_path) == {}


def test_an_edited_config_is_held_to_the_same_bounds(run, capfd):
    config = json.loads((run / "config.json").read_text())
    for section, field, value in (("loop", "seed", 2**70), ("solver", "max_evals", 10**14)):
        changed = {**config, section: {**config[section], field: value}}
        (run / "config.json").write_text(json.dumps(changed))
        assert f"{section}.{field}" in refuse(capfd, "evaluate", "run")
    (run / "config.json").write_text(json.dumps(config).replace('"learning_rate": ', '"learning_rate": 1e400, "_": '))
    refuse(capfd, "evaluate", "run")


@pytest.mark.parametrize(
    "arguments",
    [
        "demo --num-epochs 0",
        "demo --jobs 0",
        "demo --jobs 99999999",
        "demo --num-seeds 1001",
        "diagnose run --max-products 1",
    ],
)
def test_commands_refuse_counts_of_which_nothing_would_come(arguments, run, capfd):
    refuse(capfd, *arguments.split())


def test_a_lack_of_memory_is_a_sentence(run, monkeypatch, capfd):
    def starve(*_):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(command, "_load", lambda *_: starve)
    assert "not enough memory" in refuse(capfd, "train", "synthetic", code=1)
    monkeypatch.setattr(command, "_load", lambda *_: lambda rest: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["train"])


# Names and files


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "synthetic", "--out", "x" * 300),
        ("train", "x" * 300 + ".py:f"),
        ("train", "synthetic", "--out", "a\0b"),
        ("evaluate", "x" * 300),
        ("evaluate", "\udcff"),
        ("diagnose", "x" * 300),
        ("train", "\udcff"),
    ],
    ids=str,
)
def test_names_that_no_file_can_have_are_refused(arguments, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    refuse(capfd, *arguments)


def test_a_report_can_be_about_names_that_are_no_unicode(run, tmp_path, capfd, caplog):
    other = shutil.copytree(run, tmp_path / "a\udcffb")
    assert main(["report", str(other), "--out", str(tmp_path / "r.html"), "--title", "t\udcff"]) == 0
    assert "a?b" in (tmp_path / "r.html").read_text(encoding="utf-8")
    # What is left of the output could not be sent to the process that reports on the tests.
    capfd.readouterr()
    caplog.clear()


@pytest.mark.parametrize("name", ["config.json", "checkpoints", "metrics.jsonl"])
def test_a_lack_of_permission_is_a_sentence(name, run, monkeypatch, capfd):
    # Root may read everything, so that the refusal is made here.
    plain = os.stat

    def deny(path, *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and Path(path).name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", deny)
    # Python 3.10 has taken os.stat from there before.
    monkeypatch.setattr(Path, "stat", deny)
    line = refuse(capfd, "train", "--resume", "--out", "run")
    assert "Permission denied" in line
    assert name in line


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "environment.json", "evaluation.json", ".lock"])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(name, run, capfd):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    # Not at its end, so that the run has something to write.
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    is_harmless = name == "evaluation.json"
    assert main(["train", "--resume", "--out", "run"]) == (0 if is_harmless else 2)
    if not is_harmless:
        assert name in capfd.readouterr().err or name == "config.json"
    else:
        refuse(capfd, "evaluate", "run")
    if name != "config.json":
        problems = RunRecord.read(run).problems
        assert (f"{name} cannot be read." in problems) == (name != ".lock")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("evaluate", "evaluation.json"),
        ("evaluate", "evaluation.csv"),
        ("diagnose", "diagnosis.json"),
        ("diagnose", "diagnosis"),
        ("diagnose", "diagnosis/surface.png"),
    ],
)
@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_found_out_about_a_run_goes_through_no_link(command, name, is_there, run, tmp_path, capfd):
    target = tmp_path / "target"
    (run / name).parent.mkdir(exist_ok=True)
    if is_there:
        target.mkdir() if name == "diagnosis" else target.write_text("precious")
    (run / name).symlink_to(target)
    assert f"{name} is a link" in refuse(capfd, command, "run")
    if not is_there:
        assert not target.exists()
    elif target.is_dir():
        assert not any(target.iterdir())
    else:
        assert target.read_text() == "precious"


@pytest.mark.parametrize("file", ["model.safetensors", "state.pt", "checksums.json"])
def test_a_checkpoint_with_a_pipe_is_passed_over(file, run):
    path = run / "checkpoints" / "step-00000012" / file
    path.unlink()
    os.mkfifo(path)
    checkpoint = RunFolder(run).checkpoints().load_latest()
    assert checkpoint is not None
    assert checkpoint.step == 8


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "environment.json", "evaluation.json"])
def test_json_of_any_depth_is_read_without_a_traceback(name, run, capfd):
    (run / name).write_text(f"{DEEP}\n")
    if name == "config.json":
        assert "nested too deeply" in refuse(capfd, "report", "run")
    else:
        assert any(name in problem for problem in RunRecord.read(run).problems)
        shutil.rmtree(run / "checkpoints" / "step-00000012")
        assert main(["train", "--resume", "--out", "run"]) == 0


def rewrite_state(run, change):
    for folder in (run / "checkpoints").iterdir():
        file, sums = folder / "state.pt", folder / "checksums.json"
        torch.save(change(torch.load(file, weights_only=True)), file)
        sums.write_text(json.dumps({**json.loads(sums.read_text()), file.name: digest(file)}))


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: [1],
        lambda state: {**state, "step": torch.tensor(3)},
        lambda state: {**state, "step": 3},
        lambda state: {**state, "optimizer": [1]},
        lambda state: {**state, "window": 3},
        lambda state: {**state, "carry": 3},
        lambda state: {**state, "identity": {"a": 1}},
        lambda state: {**state, "identity": {**state["identity"], "config": [1]}},
        lambda state: {**state, "num_bad": "x"},
        lambda state: {**state, "evaluation": {}},
    ],
)
def test_states_that_no_run_saves_are_refused(change, run, capfd):
    rewrite_state(run, change)
    refuse(capfd, "train", "--resume", "--out", "run", code=1)


# NaN


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(bad, run, capfd):
    for folder in (run / "checkpoints").iterdir():
        file, sums = folder / "model.safetensors", folder / "checksums.json"
        weights = safetensors.torch.load_file(file)
        weights["layer.cell.b"][2] = bad
        safetensors.torch.save_file(weights, file)
        sums.write_text(json.dumps({**json.loads(sums.read_text()), file.name: digest(file)}))
    for name in ("evaluate", "diagnose"):
        assert "layer.cell.b is not finite" in refuse(capfd, name, "run", code=1)
    assert not (run / "evaluation.json").exists()


def test_diagnoses_of_huge_and_infinite_numbers_have_figures():
    huge = diagnosis(jacobian_norm=(1e308,) * 8, spectral_radius_errors=(math.inf,) * 8)
    assert diagnosis_panels(RunDiagnosis.from_json(huge.to_json()))
    equal = diagnosis(jacobian_norm=(1e17,) * 8)
    titles = [panel.title for panel in diagnosis_panels(equal)]
    assert "Jacobian norm by sample" in titles


def test_a_diagnosis_whose_sequences_do_not_fit_is_left_out(run):
    content = json.loads(diagnosis().to_json())
    (run / "diagnosis.json").write_text(json.dumps({**content, "residual_low": [0.1]}))
    record = RunRecord.read(run)
    assert record.diagnosis is None
    assert record.problems == ("diagnosis.json cannot be read.",)


# Streams and signals


class Full(io.StringIO):
    """A file on a disk without room."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_output_that_cannot_be_written_is_a_sentence(monkeypatch, capfd):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Full())
        code = main(["--help"])
    assert code == 1
    assert "No space left on device" in capfd.readouterr().err


def test_an_error_that_nobody_can_read_still_has_its_code(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Full())
        assert main(["trian"]) == 2


def test_closed_streams_are_no_error():
    streams = "import sys; sys.stdin = sys.stdout = sys.stderr = None; from steadeq.lab.cli.main import main;"
    code = f"{streams} assert main(['--version']) == 0; assert main(['trian']) == 2; sys.stdout.isatty()"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_ctrl_c_while_modules_are_imported_is_never_swallowed():
    code = (
        "import signal; from steadeq.lab.cli import main\n"
        "def load(*_):\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n"
        "    except BaseException:\n        pass\n"
        "    return lambda rest: 0\n"
        "main._load = load\n"
        "raise SystemExit(main.main(['train']))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert result.returncode == 130
    assert result.stderr == "steadeq: Stopped before anything was done.\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# Processes


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "-2"},
        {"WORLD_SIZE": "two"},
        {"WORLD_SIZE": "²"},
        {"WORLD_SIZE": "9" * 400},
        {"RANK": "1"},
        {"RANK": "-1"},
        {"LOCAL_RANK": "-1"},
        {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"},
        {"WORLD_SIZE": "2", "RANK": "0"},
        {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"},
    ],
    ids=str,
)
def test_odd_places_among_processes_are_refused(variables, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refuse(capfd, "train", "synthetic")
    assert snapshot(tmp_path) == {}


# Pipes where a model is looked for


@pytest.fixture
def _in_seconds():
    """Fail, rather than wait for ever for somebody to write into a pipe."""

    def give_up(*_):
        raise TimeoutError("It takes for ever.")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_in_seconds")
@pytest.mark.parametrize("name", ["evaluate", "diagnose", "generate", "report"])
def test_no_command_waits_for_a_config_to_be_written(name, run, capfd):
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    refuse(capfd, name, "run")
    with pytest.raises(InputError, match="run is not a run"):
        load_model(run)


@pytest.mark.usefixtures("_in_seconds")
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_no_command_waits_for_a_model_to_be_written(file, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    ToyDEQ(hidden=10).save_pretrained("model")
    Path("model", file).unlink()
    os.mkfifo(Path("model", file))
    refuse(capfd, "evaluate", "model", "--data", "synthetic")
    assert "it is not a plain file" in refuse(capfd, "convert", f"model/{file}", "--out", "converted")
    with pytest.raises(ValueError, match=rf"model/{file} cannot be read: it is not a plain file\."):
        ToyDEQ.from_pretrained("model")
