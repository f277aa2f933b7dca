"""Puts the numbers of results/ into docs/results.md.

    python docs/results.py

Tables are never typed by hand; a test compares the page with the numbers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from steadeq.experiments import ARTEFACTS
from steadeq.experiments.results import tabulate_verdicts

HERE = Path(__file__).parent
PAGE = HERE / "results.md"
RESULTS = HERE.parent / "results"


def render(page: str) -> str:
    """Return the page with the tables of all artefacts that have results."""
    for name, artefact in ARTEFACTS.items():
        path = RESULTS / name / "summary.json"
        if not path.is_file():
            continue
        content = json.loads(path.read_text())
        block = f"{artefact.tabulate(content)}\n\n{tabulate_verdicts(content)}"
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
