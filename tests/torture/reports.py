"""Names and values that are HTML, SVG or mathematics: a report shows them, and its page does nothing."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from random import Random

from lab.report.folders import append, diagnosis, write_evaluation, write_run
from torture import subjects
from torture.configs import change
from torture.process import command

HOSTILE = (
    "<script>alert(1)</script>",
    "</title><script src=//x.example>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "'><svg/onload=alert(1)>",
    "]]></style><script>1</script>",
    "<!--",
    "-->",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "$x_{$ \\input{/etc/passwd}",
    "$\\frac{$",
    "${x}",
    "\\",
    "&lt;script&gt;",
    "\u202eltr",
    "a\x00b\x07c",
    "\x1b]0;title\x07",
    "x" * 5000,
    "<" * 300,
    "\ud83d",
)
VOID = ("meta", "link", "br", "path", "use", "image", "rect", "circle", "line", "polygon", "polyline", "col", "hr")


def attempt(draw: Random, folder: Path) -> None:
    """Report runs with hostile strings wherever a run has strings."""
    names = []
    for index in range(draw.randint(1, 3)):
        hostile = draw.choice(HOSTILE)
        name = re.sub(r"[/\x00]", "-", hostile)[:60] + str(index) if draw.random() < 0.5 else f"run{index}"
        try:
            run = write_run(folder / name, recipe=draw.choice(("digits", "digits-jr")), name=draw.choice(HOSTILE))
        except UnicodeEncodeError:
            name = f"run{index}"
            run = write_run(folder / name, recipe="digits", name="plain")
        write_evaluation(
            run, {1: 0.5, 6: 0.9}, metric=draw.choice(("accuracy", hostile)), split=draw.choice(("test", hostile))
        )
        if draw.random() < 0.5:
            text = diagnosis(**draw.choice(({}, {"split": hostile}))).to_json()
            (run.path / "diagnosis.json").write_text(_changed(draw, _poisoned(draw, text, hostile)))
        if draw.random() < 0.3:
            evaluation = run.path / "evaluation.json"
            evaluation.write_text(_changed(draw, evaluation.read_text()))
        if draw.random() < 0.5:
            append(run, event=hostile, step=41, loss=hostile, **{hostile: hostile})
        environment = run.path / "environment.json"
        if draw.random() < 0.7:
            environment.write_text(_poisoned(draw, environment.read_text(), hostile))
        if draw.random() < 0.3:
            config = run.path / "config.json"
            config.write_text(_poisoned(draw, config.read_text(), hostile))
        names.append(name)
    title = draw.choice(("report", draw.choice(HOSTILE).replace("\0", "")))
    variables = subjects.environment(folder)
    outcome = command("report", *names, f"--title={title}", "--out", "page.html", folder=folder, environment=variables)
    outcome.check(0, 1, 2)
    if outcome.code == 0:
        _Page((folder / "page.html").read_text()).check()


def _poisoned(draw: Random, text: str, hostile: str) -> str:
    """Return some JSON with one of its strings replaced."""
    content = json.loads(text)
    places = list(_strings(content))
    if places:
        owner, key = draw.choice(places)
        owner[key] = hostile
    return json.dumps(content)


def _changed(draw: Random, text: str) -> str:
    """Return some JSON, half of the time with something else in one of its places."""
    content = json.loads(text)
    if draw.random() < 0.5:
        change(draw, content)
    return json.dumps(content)


def _strings(content):
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        if isinstance(value, str):
            yield content, key
        elif isinstance(value, (dict, list)):
            yield from _strings(value)


class _Page(HTMLParser):
    """Collects what a page could do."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.problems, self.open = text, [], []
        self.feed(text)

    def check(self) -> None:
        assert not self.problems, f"the page has {self.problems[:3]}"
        assert not self.open, f"the page leaves {self.open[:3]} open"
        assert "root:x:0" not in self.text
        assert "49" not in re.findall(r"<title>(.*?)</title>", self.text, re.DOTALL)

    def handle_starttag(self, tag, attrs) -> None:
        allowed = ("#", "data:image/", "data:,")
        if tag in ("script", "iframe", "object", "embed", "form", "base", "img", "foreignobject", "animate", "set"):
            self.problems.append(tag)
        for name, value in attrs:
            is_link = name in ("href", "src", "xlink:href", "action", "srcset")
            if name.startswith("on") or (is_link and not (value or "").startswith(allowed)):
                self.problems.append(f"{tag} {name}={value}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.problems.append(f"</{tag}>")
