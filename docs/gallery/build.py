"""Run the gallery: `make gallery` turns every script of this folder into a notebook with its results.

The sources are plain scripts with `# %%` between cells, so that they can be read, compared, checked and run as Python;
jupytext makes notebooks of them. Notebooks are kept in the repository with their pictures, for those who open them
there or in Colab, and for the documentation site.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent
REPOSITORY = "https://github.com/steadeq/steadeq"
MAX_SECONDS = 120
INSTALL = f"""import sys
if "google.colab" in sys.modules:
    %pip install -q "steadeq[train] @ git+{REPOSITORY}"{{more}}"""


def main() -> int:
    """Run the notebooks that are named, or all; return 1 if one fails or takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="scripts to run, without .py; all if none is named")
    # Progress bars of deepinv's, which nobody sees in a notebook that was run before.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")
    names = parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))
    failed = [name for name in names if not _run(name)]
    return 1 if failed else 0


def _run(name: str) -> bool:
    notebook = jupytext.read(FOLDER / f"{name}.py")
    more = " deepinv" if "import deepinv" in (FOLDER / f"{name}.py").read_text(encoding="utf-8") else ""
    notebook.cells.insert(1, nbformat.v4.new_code_cell(INSTALL.format(more=more)))
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    before = os.times()
    try:
        NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            coalesce_streams=True,
            resources={"metadata": {"path": FOLDER}},
        ).execute()
    except CellExecutionError as error:
        # deepinv imports it, and its own message does not say what to do.
        fits = "operator torchvision::" not in error.evalue
        reason = error if fits else "torchvision does not fit this build of torch; install both from one index"
        print(f"{name} failed: {reason}", file=sys.stderr)
        return False
    after = os.times()
    # Of the processor, so that what else runs on the machine does not matter.
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    if str(FOLDER.parents[1]) in nbformat.writes(notebook):
        print(f"{name} shows a path of this machine, as warnings do.", file=sys.stderr)
        return False
    for index, cell in enumerate(notebook.cells):
        # Nothing that differs from run to run but the results.
        cell.id = f"cell-{index}"
        cell.metadata = {}
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")
    print(f"{name}: {seconds:.0f} s of one core", flush=True)
    if seconds > MAX_SECONDS:
        print(f"{name} took longer than {MAX_SECONDS} s.", file=sys.stderr)
    return seconds <= MAX_SECONDS


if __name__ == "__main__":
    sys.exit(main())
