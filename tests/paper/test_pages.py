"""No number on a page was typed by hand."""

import importlib.util
import re
from pathlib import Path

import pytest

from steadeq.paper import ARTEFACTS

ROOT = Path(__file__).parent.parent.parent


def load_script():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "reproduction.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/reproduction.md"])
def test_a_page_has_the_numbers_of_the_files(name):
    script = load_script()
    path = ROOT / name
    assert path in script.PAGES
    assert script.render(path) == path.read_text(encoding="utf-8")


def test_every_artefact_has_results_and_a_place_on_the_page():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for name in ARTEFACTS:
        assert (ROOT / "results" / name / "summary.json").is_file(), name
        assert f"<!-- {name} -->" in page
        assert f'<a id="{name}"></a>' in page


def test_every_picture_on_a_page_is_there():
    for name in ("README.md", "docs/index.md", "docs/reproduction.md"):
        path = ROOT / name
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / picture).is_file(), (name, picture)
