"""No number on a page was typed by hand, and every page, picture and link is there."""

import importlib.util
import re
from pathlib import Path

import pytest

from steadeq.paper import RESULTS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("build_pages", ROOT / "docs" / "results" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("name", ["docs/index.md", *(str(path.relative_to(ROOT)) for path in PAGES)])
def test_a_page_has_the_numbers_of_the_files(name, pages):
    assert pages[ROOT / name] == (ROOT / name).read_text(encoding="utf-8")


def test_every_result_has_numbers_a_page_and_a_line_in_the_overview():
    overview = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8")
    for name, result in RESULTS.items():
        page = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {result.title}\n"), name
        assert f"({name}.md)" in overview
        cpu, day = (scale in result.scales for scale in ("cpu", "day"))
        if cpu:
            assert (ROOT / "results" / name / "summary.json").is_file(), name
        for mark in (*(("table", "claims") if cpu else ()), *(("day",) if day else ())):
            assert page.count(f"<!-- {mark} -->") == page.count(f"<!-- /{mark} -->") == 1


def test_the_overview_counts_the_papers_claims_and_our_own_apart():
    lines = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if "`steadeq reproduce " in line and line.startswith("|")]
    assert len(rows) == len(RESULTS) + 1
    for place in (2, 3):
        *each, total = ([int(n) for n in re.findall(r"\d+", row[place])] or [0, 0] for row in rows)
        assert total[:2] == [sum(numbers[n] for numbers in each) for n in (0, 1)]


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "index.md", *PAGES], ids=lambda path: path.stem)
def test_every_picture_on_a_page_is_there(path):
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / picture).is_file(), picture


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_link_on_a_page_leads_somewhere(path):
    for link in re.findall(r"(?<!!)\[[^]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        if file.startswith("http"):
            continue
        target = path.parent / file
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.M) if anchor else []
        assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings], link


def test_the_overview_begins_with_the_headlines_and_has_every_claim():
    overview = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8")
    marks = [overview.index(f"<!-- {mark} -->") for mark in ("headlines", "overview", "verdicts", "reasons")]
    assert marks == sorted(marks)
    for result in RESULTS.values():
        for claim in result.claims:
            assert claim.text.replace("|", "\\|") in overview
