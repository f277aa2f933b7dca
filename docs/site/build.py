"""Build the documentation site in build/site, and check every link of it: `make docs`.

The pages of docs/ are read in the repository as well, where a relative link may lead to any file. So they are first
copied to build/docs, together with the pages of the root, with what they link to, and with formulas as MathML, which
browsers show without a script. Zensical, the successor of Material for MkDocs by the same authors, does the rest; it
reads mkdocs.yml, which has nothing that MkDocs would not read.
"""

from __future__ import annotations

import base64
import functools
import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[2]
COPY, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages outside of docs/, and what they are called in the site."""
SHOWN = {".css", ".csv", ".gif", ".png"}
"""Files that become part of the site where a page links to them; links to others lead to the repository."""


def main() -> int:
    """Build the site; return 1 if there is anything to complain about."""
    for folder in (COPY, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    docs = ROOT / "docs"
    pages = [*docs.rglob("*.md"), *docs.glob("gallery/*.ipynb")]
    names = {str(path.relative_to(ROOT)): str(path.relative_to(docs).with_suffix(".md")) for path in pages} | PAGES
    (repository,) = re.findall(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    for source, name in names.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = _notebook(json.loads(text), source, name, repository) if source.endswith(".ipynb") else text
        link = functools.partial(_link, source=source, name=name, names=names, repository=repository)
        _write(name, _outside_of_code(text, lambda prose, link=link: _formulas(_LINK.sub(link, prose))))
    _copy("docs/site/site.css", "site.css")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", ROOT / "mkdocs.yml"], check=False
    )
    if done.returncode:
        return 1
    broken = [f"{page.relative_to(SITE)}: {link}" for page in sorted(SITE.rglob("*.html")) for link in _broken(page)]
    print("\n".join(broken) or f"{len(names)} pages in {SITE.relative_to(ROOT)}, no broken link")
    return 1 if broken else 0


_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", flags=re.DOTALL | re.MULTILINE)


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if index % 2 else change(part) for index, part in enumerate(_CODE.split(text)))


def _link(match: re.Match[str], *, source: str, name: str, names: dict[str, str], repository: str) -> str:
    """Return a link of a page so that it leads to the same place from within the site."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
    if not (ROOT / target).exists():
        raise SystemExit(f"{source} links to {match[2]}, which is not there.")
    if target in names:
        target = names[target]
    elif Path(target).suffix in SHOWN:
        target = _copy(target, f"files/{target}")
    else:
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{match[1]}{repository}/{kind}/main/{target}{match[3]}"
    return match[1] + posixpath.relpath(target, posixpath.dirname(name) or ".") + match[3]


def _notebook(notebook: dict[str, Any], source: str, name: str, repository: str) -> str:
    """Return a notebook as Markdown, and write its pictures beside it."""
    path = repository.removeprefix("https://github.com/")
    parts = []
    for index, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            if index == 0:
                colab = f"https://colab.research.google.com/github/{path}/blob/main/{source}"
                parts.append(f"[Open in Colab]({colab}) · [source]({repository}/blob/main/{source[:-5]}py)")
        elif "google.colab" not in text:
            parts.append(f"```python\n{text}\n```")
        for number, output in enumerate(cell.get("outputs", ())):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output.get("data", {}):
                picture = COPY / f"{name[:-3]}-{index}-{number}.png"
                picture.parent.mkdir(parents=True, exist_ok=True)
                picture.write_bytes(base64.b64decode(output["data"]["image/png"]))
                parts.append(f'<img alt="What the cell draws" src="{picture.name}">')
    return "\n\n".join(parts)


def _formulas(text: str) -> str:
    text = re.sub(r"^\$\$(.+?)\$\$$", lambda m: convert(m[1], display="block"), text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\$([^$\s](?:[^$\n]*[^$\s])?)\$", lambda m: convert(m[1]), text)


def _write(name: str, text: str) -> None:
    path = COPY / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(source: str, name: str) -> str:
    path = COPY / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / source, path)
    return name


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value is not None:
                self.links.add(value)
                if key == "src":
                    self.loaded.add(value)
            elif key in ("id", "name") and value is not None:
                self.anchors.add(value)


@functools.cache
def _parsed(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _broken(path: Path) -> list[str]:
    """Return the links of a page to files or headings that are not there, and what it loads from other sites."""
    found = []
    for link in _parsed(path).links:
        parts = urlsplit(link)
        if link in _parsed(path).loaded and parts.scheme in ("http", "https"):
            found.append(link)
        if parts.scheme or parts.netloc or path.name == "404.html":
            continue  # on other sites, or from wherever a reader got lost
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        is_heading = parts.fragment and target.suffix == ".html"
        if not target.is_file() or (is_heading and unquote(parts.fragment) not in _parsed(target).anchors):
            found.append(link)
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
