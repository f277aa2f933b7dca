"""The words of the project: pages stay short, and phrases over which readers stumbled do not come back."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "steadeq"

RETIRED = {
    r"that of\b": "name the thing again, or turn the sentence around",
    r"what (\w+ ){1,3}(comes|came) to\b": "say what it is",
    r"in the place of\b": "instead of",
    r"explicit twins?\b": "a stack of layers, or a network without an equilibrium",
    r"as large beside its words": "with as many parameters without its word vectors",
    r"as a closed loop says": "in a closed loop",
    r"no longer arrives anywhere": "does not settle",
    r"to the right of it": "beyond it",
    r"needs no number of evaluations": "say which number is missing",
    r"(is|are) no part of": "does not belong to",
    r"\b\d+ (plain )?iterations\b": "evaluations, which are what is counted",
    r"NFE used": "evaluations that were made",
}
"""Phrases that are retired, and what to say instead."""

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "api").glob("*.md"),
]
MODULES = sorted(SOURCES.rglob("*.py"))


def found_in(text: str) -> list[str]:
    """Return the retired phrases in a text, whose lines may break anywhere, with what to say instead."""
    text = " ".join(text.split())
    return [
        f"...{text[max(match.start() - 40, 0) : match.end() + 20]}... (instead: {instead})"
        for phrase, instead in RETIRED.items()
        for match in re.finditer(phrase, text, flags=re.IGNORECASE)
    ]


def strings_of(path: Path) -> list[str]:
    """Return the strings of a module: docstrings, help texts and messages; an f-string is one of them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    whole = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values) for node in joined
    ]
    plain = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    return whole + [node.value for node in plain if isinstance(node.value, str)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_have_no_retired_phrase(path):
    assert found_in(path.read_text(encoding="utf-8")) == []


def test_help_docstrings_and_messages_have_no_retired_phrase():
    assert {
        str(p.relative_to(ROOT)): f for p in MODULES if (f := [w for s in strings_of(p) for w in found_in(s)])
    } == {}


def test_a_retired_phrase_is_found_across_lines():
    assert len(found_in("the gradient is that\n  of the loss, after 12 iterations")) == 2
    assert found_in("that offer, 12 evaluations, a state comes to rest") == []


def test_pages_can_be_read_in_an_afternoon():
    pages = [page.read_text(encoding="utf-8") for page in PAGES if "docs" in page.parts]
    # What pages of the reference say to its generator is not read.
    num_words = sum(len(re.sub(r"^:::.*\n( .*\n)*", "", page, flags=re.MULTILINE).split()) for page in pages)
    assert num_words < 20_000
