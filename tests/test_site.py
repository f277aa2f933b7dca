"""The documentation: every parameter is explained, and the site works in a browser."""

import ast
import functools
import http.server
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import zlib
from pathlib import Path

import pytest

import steadeq

ROOT = Path(__file__).parents[1]
MODULES = (
    "adjoints",
    "diagnosis",
    "export",
    "integrations",
    "jacobian",
    "models",
    "models.equilibrium_transformer",
    "models.mdeq",
    "models.monotone",
    "models.transformer",
    "nn",
    "solvers",
)
PUBLIC = sorted(
    {f"steadeq.{name}" for name in steadeq.__all__}
    | {
        f"steadeq.{module}.{name}"
        for module in MODULES
        for name in importlib.import_module(f"steadeq.{module}").__all__
    }
)


def resolve(path):
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def explained(value) -> set[str]:
    """Return the parameters that a docstring explains, or the literal under a field."""
    names = set(re.findall(r"^\s*\*{0,2}(\w+): ", inspect.getdoc(value) or "", flags=re.MULTILINE))
    if inspect.isclass(value):
        for base in value.__mro__:
            if base.__module__.startswith("steadeq"):
                (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
                names |= {
                    field.target.id
                    for field, text in zip(node.body, node.body[1:], strict=False)
                    if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
                }
                names |= set(re.findall(r"^\s*\*{0,2}(\w+): ", inspect.getdoc(base) or "", flags=re.MULTILINE))
    return names


def has_parameters(value) -> bool:
    """Return whether a name is a function, or a class with a constructor of its own."""
    constructor = value.__init__ if inspect.isclass(value) else value
    return inspect.isfunction(constructor) and constructor.__module__.startswith("steadeq")


def shown_of_the_lab() -> list[str]:
    """Return what the page of the lab shows: the members that it lists, or all that is public."""
    page = (ROOT / "docs" / "api" / "lab.md").read_text(encoding="utf-8")
    shown = []
    for path, members in re.findall(
        r"^::: (\S+)\n(?: .*\n)*?(?: +members: \[(.+)\]\n|\n|\Z)", page, flags=re.MULTILINE
    ):
        module = importlib.import_module(path)
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == path]
        names = members.split(", ") if members else getattr(module, "__all__", own)
        shown += [f"{path}.{name}" for name in names if not name.startswith("_")]
    return shown


@pytest.mark.parametrize("path", [path for path in PUBLIC + shown_of_the_lab() if has_parameters(resolve(path))])
def test_every_parameter_of_a_public_name_is_explained(path):
    assert set(inspect.signature(resolve(path)).parameters) <= explained(resolve(path))


def test_every_page_is_in_the_navigation():
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    pages |= {f"gallery/{path.stem}.md" for path in docs.glob("gallery/*.ipynb")}
    pages |= set(re.findall(r'": "([\w-]+\.md)"', (docs / "site" / "build.py").read_text(encoding="utf-8")))
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    assert sorted(re.findall(r"[\w/-]+\.md", navigation)) == sorted(pages)


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("zensical", reason="needs the extra docs: make docs")
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "site" / "build.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = ROOT / "build" / "site"

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    folder, _ = site
    inventory = zlib.decompress((folder / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]).decode()
    listed = {line.split()[0] for line in inventory.splitlines()}
    for path in PUBLIC:
        value = resolve(path)
        homes = {path, f"{getattr(value, '__module__', '')}.{path.rsplit('.', 1)[1]}"}
        assert listed & homes or inspect.ismodule(value) or path.endswith("__"), path


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra docs: make docs")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [375, 768, 1440])
def test_pages_open_without_errors_and_fit_the_width(site, browser, width):
    folder, address = site
    page = browser.new_page(viewport={"width": width, "height": 900})
    complaints = []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith(address) or complaints.append(request.url))
    pages = ["", "api/jacobian", "math", "results", "results/table1", "training"]
    for path in (
        sorted(folder.rglob("index.html")) if width == 375 else [folder / name / "index.html" for name in pages]
    ):
        page.goto(address + path.parent.relative_to(folder).as_posix())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
        assert page.locator("h1").count() == 1, path
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert page.evaluate(broken) == [], path
    assert complaints == []
    page.close()


@pytest.mark.slow
def test_the_search_finds_a_solver_and_formulas_are_shown(site, browser):
    _, address = site
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="dark")
    page.goto(address)
    assert page.evaluate("document.body.getAttribute('data-md-color-scheme')") == "slate"
    page.keyboard.press("Control+k")
    page.keyboard.type("Anderson")
    page.locator("a[href*='api/solvers/']").locator("visible=true").first.wait_for(timeout=10_000)
    page.goto(f"{address}math/")
    assert page.locator("math").first.bounding_box()["width"] > 10
    page.close()
