import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SMALL = {"06_stabilize_a_loop": ["--num-steps", "150", "--num-bits", "8", "--depth", "8"]}
"""Options that make an example quick, where its own size is not."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_its_own_assertions_hold(path):
    result = subprocess.run(
        [sys.executable, path, *SMALL.get(path.stem, [])], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def python_of(page):
    """Return the blocks of Python of a page."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    return blocks


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", "samples converged"),
        ("docs/cells.md", "2 torch.Size([4, 5, 8])"),
        ("docs/diagnose.md", "yes, all 32 samples"),
        ("docs/how-to-choose.md", "of 8 samples converged"),
        ("docs/export.md", ""),
        ("docs/integrations.md", "forward_evals"),
        ("docs/models.md", "torch.Size([2, 100])"),
        ("docs/repair.md", "settles:"),
        ("docs/not-converging.md", "forward: 32 of 32 samples converged"),
        pytest.param("docs/performance.md", "torch.Size([32, 64])", marks=pytest.mark.slow),
    ],
)
def test_the_python_of_a_page_runs(page, printed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # From top to bottom, as it is read: later blocks may use names of earlier ones.
    names = {"__name__": "page"}
    for block in python_of(page):
        exec(compile(block, page, "exec"), names)
    assert printed in capsys.readouterr().out


def test_the_recipe_of_the_page_about_own_recipes_trains(tmp_path, monkeypatch):
    recipe, plain_network, load = python_of("docs/own-recipe.md")
    (tmp_path / "sine.py").write_text(f"{recipe}\n\n{plain_network}", encoding="utf-8")
    for options in (["--out", "runs/sine"], ["--out", "runs/plain", "--model", "Net"]):
        # Two steps, as this is about the page and not about the sine.
        command = [sys.executable, "-m", "steadeq", "train", "sine.py:recipe", *options]
        result = subprocess.run(
            [*command, "--loop.num-epochs", "1", "--data.num-samples", "64"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(load, "own-recipe.md", "exec"), names)
    assert names["model"](torch.zeros(4, 1)).shape == (4, 1)


def test_a_script_trains_resumes_evaluates_and_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (script,) = python_of("docs/training.md")
    # A few steps, as this is about the page and not about digits.
    short = "config = replace(config, loop=replace(config.loop, num_steps=3))"
    script = script.replace("complete_run(", f"from dataclasses import replace\n{short}\ncomplete_run(", 1)
    for _ in range(2):
        # The second time, all is there already.
        exec(compile(script, "training.md", "exec"), {"__name__": "page"})
    assert "[(2, " in capsys.readouterr().out
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_relative_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_recipe_of_the_page_about_texts_trains_on_files_of_ones_own(tmp_path):
    (script,) = python_of("docs/own-text.md")
    (tmp_path / "notes.py").write_text(script, encoding="utf-8")
    folder = tmp_path / "data" / "notes"
    folder.mkdir(parents=True)
    for name in ("train", "valid", "test"):
        (folder / f"wiki.{name}.tokens").write_text("one two three , and four .\n" * 400, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "steadeq", "train", "notes.py:recipe", "--out", "run", "--loop.num-steps", "2"],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "STEADEQ_DATA": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "perplexity" in result.stdout
