"""`steadeq bench`: the benchmark of a checkout as a command."""

import json
import subprocess
import sys
import typing

import pytest

from steadeq.lab.cli import bench
from steadeq.lab.cli.main import main


def test_a_part_is_measured_and_shown_and_scripts_get_the_numbers(capfd):
    assert main(["bench", "waiting", "--quick", "--quiet", "--json"]) == 0
    output, errors = capfd.readouterr()
    assert {row["library"] for row in json.loads(output)["waiting"]} >= {"steadeq"}
    assert "for which the host waits" in errors


@pytest.mark.slow
def test_the_parts_are_those_of_the_benchmark():
    done = subprocess.run([sys.executable, bench.BENCHMARK, "--help"], capture_output=True, text=True, check=True)
    (parts,) = typing.get_args(typing.get_type_hints(bench.Arguments)["parts"])[:1]
    assert "{" + ",".join(typing.get_args(parts)) + "}" in "".join(done.stdout.split())


def test_without_a_checkout_a_sentence_says_what_is_needed(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(bench, "BENCHMARK", tmp_path / "overhead.py")
    assert main(["bench"]) == 2
    assert "needs a checkout of the repository; clone it and run `make bench`" in capfd.readouterr().err


def test_a_benchmark_that_fails_is_told(monkeypatch, tmp_path, capfd):
    (tmp_path / "overhead.py").write_text("raise SystemExit('no memory')")
    monkeypatch.setattr(bench, "BENCHMARK", tmp_path / "overhead.py")
    assert main(["bench"]) == 1
    errors = capfd.readouterr().err
    assert "no memory" in errors
    assert "steadeq: The benchmark stopped; the lines above say why." in errors
