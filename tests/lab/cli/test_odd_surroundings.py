"""Closed streams, full disks, pipes, links and odd environments get a code and a sentence, never a traceback."""

import errno
import io
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab.cli.commands import refuse
from lab.report.folders import diagnosis
from lab.train.runs import environment, latest, snapshot

from steadeq import load_model
from steadeq.lab.cli import main as command
from steadeq.lab.cli.main import main
from steadeq.lab.errors import InputError
from steadeq.lab.report import diagnosis_panels
from steadeq.lab.run.record import RunDiagnosis, RunRecord
from steadeq.models import ToyDEQ

DEEP = "[" * 100_000 + "]" * 100_000


def test_an_error_that_nobody_expected_is_not_hidden(monkeypatch):
    def fail(rest):
        raise RuntimeError("a bug")

    monkeypatch.setattr(command, "_load", lambda *_: fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["train"])


def test_a_command_without_its_extra_says_only_what_to_install(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('none', name='numpy')", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "steadeq", "train", "digits"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("steadeq: The command 'train' needs numpy; install it with the extra `train`")


# Names and files


def test_a_report_can_be_about_names_that_are_no_unicode(run, home, capfd, caplog):
    other = shutil.copytree(run, home / "a\udcffb")
    assert main(["report", str(other), "--out", "r.html", "--title", "t\udcff"]) == 0
    assert "a?b" in (home / "r.html").read_text(encoding="utf-8")
    # What is left of the output could not be sent to the process that reports on the tests.
    capfd.readouterr()
    caplog.clear()


@pytest.mark.parametrize("name", ["config.json", "checkpoints", "metrics.jsonl"])
def test_a_lack_of_permission_is_a_sentence(name, run, capfd):
    # Root may read everything, so that the refusal is made here.
    plain = os.stat

    def deny(path, *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and Path(path).name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", deny)
        # Python 3.10 has taken os.stat from there before.
        patch.setattr(Path, "stat", deny)
        assert main(["train", "--resume", "--out", "run"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("steadeq: ")
    assert "Permission denied" in line
    assert name in line


@pytest.mark.parametrize(
    ("command", "name", "is_there"),
    [
        ("evaluate", "evaluation.json", True),
        ("evaluate", "evaluation.csv", False),
        ("diagnose", "diagnosis.json", True),
        ("diagnose", "diagnosis", False),
        ("diagnose", "diagnosis/surface.png", True),
    ],
)
def test_what_is_found_out_about_a_run_goes_through_no_link(command, name, is_there, run, tmp_path, capfd):
    target = tmp_path / "elsewhere" / "target"
    target.parent.mkdir()
    if is_there:
        target.mkdir() if name == "diagnosis" else target.write_text("precious")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(target)
    before = snapshot(target.parent)
    assert main([command, "run"]) == 2
    assert f"{name} is a link" in capfd.readouterr().err
    assert snapshot(target.parent) == before


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "environment.json", "evaluation.json"])
def test_json_of_any_depth_is_read_without_a_traceback(name, run, capfd):
    (run / name).write_text(f"{DEEP}\n")
    if name == "config.json":
        assert "nested too deeply" in refuse(capfd, "report", "run")
    else:
        assert any(name in problem for problem in RunRecord.read(run).problems)
        shutil.rmtree(run / "checkpoints" / "step-00000012")
        assert main(["train", "--resume", "--out", "run"]) == 0


def test_diagnoses_of_huge_and_infinite_numbers_have_figures():
    huge = diagnosis(jacobian_norm=(1e308,) * 8, spectral_radius_errors=(math.inf,) * 8)
    assert diagnosis_panels(RunDiagnosis.from_json(huge.to_json()))
    equal = diagnosis(jacobian_norm=(1e17,) * 8)
    assert "Jacobian norm by sample" in [panel.title for panel in diagnosis_panels(equal)]


# Pipes in the place of files


def make_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.usefixtures("_in_seconds")
@pytest.mark.parametrize("name", ["metrics.jsonl", "environment.json", ".lock", "evaluation.json"])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(name, run, capfd):
    make_pipe(run / name)
    # Not at its end, so that the run has something to write.
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    is_harmless = name == "evaluation.json"
    assert main(["train", "--resume", "--out", "run"]) == (0 if is_harmless else 2)
    if is_harmless:
        refuse(capfd, "evaluate", "run")
    else:
        assert name in capfd.readouterr().err
    assert (f"{name} cannot be read." in RunRecord.read(run).problems) == (name != ".lock")


@pytest.mark.usefixtures("_in_seconds")
@pytest.mark.parametrize("file", ["model.safetensors", "state.pt", "checksums.json"])
def test_a_checkpoint_with_a_pipe_is_passed_over(file, run):
    make_pipe(run / "checkpoints" / "step-00000012" / file)
    assert latest(run).step == 8


@pytest.mark.usefixtures("_in_seconds")
def test_no_command_waits_for_a_config_to_be_written(run, capfd):
    make_pipe(run / "config.json")
    for words in ("evaluate run", "diagnose run", "generate run", "report run", "train --resume --out run"):
        refuse(capfd, *words.split())
    with pytest.raises(InputError, match="run is not a run"):
        load_model(run)


@pytest.mark.usefixtures("_in_seconds")
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_no_command_waits_for_a_model_to_be_written(file, home, capfd):
    ToyDEQ(hidden=10).save_pretrained("model")
    make_pipe(Path("model", file))
    refuse(capfd, "evaluate", "model", "--data", "synthetic")
    assert "it is not a plain file" in refuse(capfd, "convert", f"model/{file}", "--out", "converted")
    with pytest.raises(ValueError, match=rf"model/{file} cannot be read: it is not a plain file\."):
        ToyDEQ.from_pretrained("model")


# Streams


class Full(io.StringIO):
    """A file on a disk without room."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_cannot_be_written_still_has_its_code(monkeypatch, capfd):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Full())
        code = main(["--help"])
    assert code == 1
    assert "No space left on device" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Full())
        assert main(["trian"]) == 2


def test_closed_streams_are_no_error():
    streams = "import sys; sys.stdin = sys.stdout = sys.stderr = None; from steadeq.lab.cli.main import main;"
    code = f"{streams} assert main(['--version']) == 0; assert main(['trian']) == 2; sys.stdout.isatty()"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_a_terminal_without_unicode_gets_the_words_all_the_same(run, monkeypatch):
    for arguments, word in (("train synthetic --help", b"train"), ("diagnose run --num-samples 2", b"spectral")):
        content = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="ascii"))
            assert main(arguments.split()) == 0
            sys.stdout.flush()
            assert word in content.getvalue()


def test_a_reader_that_goes_away_is_no_error_worth_a_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "steadeq", "--help"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=300)
    assert b"Traceback" not in errors
    assert b"Exception ignored" not in errors


# Processes


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ("WORLD_SIZE", {"WORLD_SIZE": "0"}),
        ("WORLD_SIZE", {"WORLD_SIZE": "²"}),
        ("RANK", {"WORLD_SIZE": "2"}),
        ("RANK", {"RANK": "1"}),
        ("LOCAL_RANK", {"LOCAL_RANK": "-1"}),
        ("RANK", {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}),
        ("MASTER_ADDR", {"WORLD_SIZE": "2", "RANK": "0"}),
        ("cannot connect", {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}),
    ],
    ids=str,
)
def test_odd_places_among_processes_are_refused_by_name(words, variables, home, monkeypatch, capfd):
    for variable in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert words in refuse(capfd, "train", "synthetic")
