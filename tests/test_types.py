"""Type checkers accept what users write: an annotated script, and snippets of the README and on integrations."""

import re
import runpy
import subprocess
import sys

import pytest
from test_examples import ROOT, python_of

SCRIPT = ROOT / "tests" / "typed_script.py"
MISTAKES = """import torch
import steadeq

from steadeq import Andersen
steadeq.Andersen
steadeq.Anderson(max_eval=3)
text: str = steadeq.fixed_point(torch.cos, torch.zeros(2, 3)).z
steadeq.Equilibrium.at(torch.cos, torch.zeros(2, 3)).stats.residual
"""
"""From line 4 on, every line has one."""
CHECKERS = {
    # torch itself has functions without annotations, such as Tensor.backward.
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "--python-executable", sys.executable],
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKERS)
def test_scripts_of_users_are_accepted_and_mistakes_reported(name, tmp_path):
    files = {"script.py": SCRIPT.read_text(encoding="utf-8")}
    files |= {f"readme_{index}.py": block for index, block in enumerate(python_of("README.md"))}
    files["integrations.py"] = "\n".join(python_of("docs/integrations.md"))
    files["mistakes.py"] = MISTAKES
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    done = subprocess.run([*CHECKERS[name], *files], cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "error" in line and ".py:" in line]
    found = {int(re.search(r"mistakes\.py:(\d+)", line)[1]) for line in lines if "mistakes.py" in line}
    assert found == set(range(4, 4 + MISTAKES.count("\n") - 3)), done.stdout
    assert [line for line in lines if "mistakes.py" not in line] == []


def test_the_script_runs(capsys):
    runpy.run_path(str(SCRIPT))
    assert "settles:" in capsys.readouterr().out
