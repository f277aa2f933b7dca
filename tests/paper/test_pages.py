"""No number on a page was typed by hand, and every page, picture and link is there."""

import re
from pathlib import Path

import pytest

from steadeq.lab.run.record import RunRecord
from steadeq.paper.catalog import RESULTS
from steadeq.paper.comparison import Comparison
from steadeq.paper.headlines import HEADLINES
from steadeq.paper.pages import Site, write_pages
from steadeq.paper.planned import plan_runs
from steadeq.paper.result import results_folder
from steadeq.paper.variant import measure

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
CLAIMS = ROOT / "results" / "claims.csv"


@pytest.fixture(scope="module")
def pages():
    return Site(ROOT).pages()


@pytest.mark.parametrize(
    "name", ["docs/index.md", "results/claims.csv", *(str(path.relative_to(ROOT)) for path in PAGES)]
)
def test_a_page_has_the_numbers_of_the_files(name, pages):
    assert pages[ROOT / name] == (ROOT / name).read_text(encoding="utf-8")


def test_a_page_is_written_anew_in_a_checkout_and_nowhere_else(tmp_path):
    assert not write_pages(tmp_path)
    for path in (*PAGES, ROOT / "docs" / "index.md", *(ROOT / "results").rglob("summary.json")):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    figure = tmp_path / "results" / "fig5" / "on_no_page.png"
    figure.touch()
    page = tmp_path / "docs" / "results" / "fig5.md"
    whole = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"(<!-- table -->).*(<!-- /table -->)", r"\1\n\2", whole, flags=re.DOTALL), encoding="utf-8")
    assert page.read_text(encoding="utf-8") != whole
    assert write_pages(tmp_path)
    assert not figure.exists()
    assert page.read_text(encoding="utf-8") == whole
    assert (tmp_path / "results" / "claims.csv").read_text(encoding="utf-8") == CLAIMS.read_text(encoding="utf-8")


def test_every_result_has_numbers_a_page_and_a_line_in_the_overview():
    overview = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8")
    for name, result in RESULTS.items():
        page = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
        title, _, found, *_ = page.splitlines()
        assert (title, found) == (f"# {result.title}", "<!-- found -->"), name
        assert f"({name}.md)" in overview
        cpu, day = (scale in result.scales for scale in ("cpu", "day"))
        if cpu:
            assert (ROOT / "results" / name / "summary.json").is_file(), name
        for mark in (*(("table", "claims") if cpu else ()), *(("day",) if day else ())):
            assert page.count(f"<!-- {mark} -->") == page.count(f"<!-- /{mark} -->") == 1


def test_the_overview_adds_up(pages):
    lines = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split("|") for line in lines if re.match(r"^\|(\[|all)", line)]
    assert len(rows) == len(RESULTS) + 1
    for place in (1, 2):
        *each, total = ([int(n) for n in row[place].split("/")] if row[place] != "-" else [0] * 4 for row in rows)
        assert total == [sum(numbers[n] for numbers in each) for n in range(4)]


@pytest.mark.parametrize(
    "name", [name for name, r in RESULTS.items() if isinstance(r, Comparison) and "day" in r.scales]
)
def test_the_numbers_of_a_day_follow_from_the_stored_runs(name, tmp_path):
    """Divergence, evaluations, residuals and scores are measured again on the runs that are kept."""
    result, folder = RESULTS[name], results_folder(ROOT / "results", name, "day")
    if not (folder / "summary.json").is_file():
        pytest.skip("none of its runs is finished")
    runs = plan_runs(result, "day", runs=tmp_path, archive=ROOT / "results" / "runs")
    stored, _ = result.read(folder)
    done = {run: planned.path for run, planned in runs.items() if planned.is_done}
    for variant in result.variants("day"):
        records = [RunRecord.read(done[run]) for run in variant.configs() if run in done]
        assert (variant.name in stored) == bool(records), variant.name
        if records:
            row = dict.__getitem__(stored, variant.name)
            found = [measure(r, {e.max_evals: e for e in r.evaluation.rows}, variant.max_evals) for r in records]
            for measured in ("score", "diverged", "train_evals", "train_residual", "spectral_radius"):
                values = [one[measured] for one in found if one[measured] is not None]
                assert (measured in row.spreads) == bool(values)
                if values:
                    assert row.mean(measured) == pytest.approx(sum(values) / len(values)), (variant.name, measured)


def test_no_two_pages_contradict_each_other(pages):
    """A headline says what the page of its claims says, and a claim has one outcome wherever it stands."""
    index = pages[ROOT / "docs" / "results" / "index.md"]
    rows = [line.strip("|").split("|") for line in index.splitlines() if re.match(r"^\|\d\|", line)]
    assert len(rows) == len(HEADLINES)
    for row, headline in zip(rows, HEADLINES, strict=True):
        outcomes, seeds = [], []
        for result, claim in headline.claims:
            page = pages[ROOT / "docs" / "results" / f"{result.name}.md"]
            (line,) = re.findall(rf"^\d+\. .*\): {re.escape(claim.text)}[:.].*$", page, flags=re.MULTILINE)
            shown = line.split("**")[1]
            outcomes.append(shown.removesuffix(", one seed"))
            seeds.append(shown.endswith(", one seed"))
        if len(set(outcomes)) == 1:
            assert row[2] == outcomes[0]
        else:
            assert row[2].startswith(f"{outcomes.count('holds')} of {len(outcomes)} ")
        assert (row[4] == "1") == any(seeds)


def test_pages_are_short(pages):
    num_words = {path.stem: len(text.split()) for path, text in pages.items() if path in PAGES}
    # A study of our own, to be read alone.
    assert num_words.pop("iteration") < 2_400
    assert sum(num_words.values()) < 15_000
    for path, text in pages.items():
        long = [line for line in text.splitlines() if line.startswith("|") and len(line) >= 120]
        assert not long or path not in PAGES, (path.name, long)


def test_the_readme_has_the_numbers_of_the_study(pages):
    said = r"(\d+ of \d+) with a radius below 1 keep their accuracy, and none of (\d+)"
    ((below, above),) = re.findall(said, (ROOT / "README.md").read_text())
    assert f"|prefix sums|{below}|0 of {above}|" in pages[ROOT / "docs" / "results" / "iteration.md"]


def test_every_figure_among_the_results_is_on_a_page():
    assert not Site(ROOT).unshown_figures()


def test_every_link_to_a_heading_leads_there():
    links = [(path, *link) for path in PAGES for link in re.findall(r"\]\(([^):#]*)#([^)]+)\)", path.read_text())]
    assert links
    for path, file, anchor in links:
        headings = re.findall(r"^#+ (.*)$", (path.parent / file).read_text(encoding="utf-8"), flags=re.M)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings], (path, file, anchor)
