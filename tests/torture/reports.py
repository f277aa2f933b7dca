"""Names and values that are HTML, SVG or mathematics: a report shows them, and its page does nothing."""

import json
import re
from pathlib import Path
from random import Random

from lab.report.folders import append, diagnosis, write_evaluation, write_run
from lab.report.page import Page
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
        text = (folder / "page.html").read_text()
        assert not (problems := Page(text).problems), f"the page has {problems[:3]}"
        assert "root:x:0" not in text
        assert "49" not in re.findall(r"<title>(.*?)</title>", text, re.DOTALL)


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
