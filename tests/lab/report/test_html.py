import json
import re
import shutil
import subprocess
from collections import Counter
from itertools import pairwise

import pytest
import torch
from lab.report.folders import append, diagnosis, read, write_evaluation, write_run
from lab.report.page import Page

from steadeq.lab.errors import InputError
from steadeq.lab.report import Panel, Section, inline_svg, render_report, write_report
from steadeq.lab.report.curves import residual_figure
from steadeq.lab.report.groups import group_runs
from steadeq.lab.report.provenance import rerun_command
from steadeq.lab.run.checkpoint import Checkpoint
from steadeq.lab.run.loading import build_model

HOSTILE = '<script>alert("1")</script>$x_1$ & "more"'


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("runs")
    runs = [write_run(tmp_path / f"plain-{seed}", seed=seed) for seed in (0, 1)]
    runs += [write_run(tmp_path / f"jr-{seed}", recipe="digits-jr", seed=seed, accuracy=0.95) for seed in (0, 1)]
    for run in runs:
        write_evaluation(run, {1: 0.5, 6: 0.9, 18: 0.93})
    (runs[0].path / "diagnosis.json").write_text(diagnosis().to_json())
    return runs


@pytest.fixture(scope="module")
def render(folders):
    """Return a function that makes the page of these runs, with a section more."""

    def render():
        figure = residual_figure(group_runs(read(*folders)))
        section = Section(title="Mine", intro="An intro.", panels=[Panel(figure=figure, title="One", caption="Two.")])
        return render_report(read(*folders), sections=[section])

    return render


@pytest.fixture(scope="module")
def text(render):
    return render()


def save_weights(run):
    model = build_model(run.config())
    run.checkpoints().save(Checkpoint(weights=model.state_dict(), average=None, state={"step": 40}))


def test_the_page_loads_nothing_and_does_nothing(text):
    assert "://" not in text
    assert not Page(text).problems


def test_ids_are_unique_and_references_lead_somewhere(text):
    page = Page(text)
    counts = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert max(counts.values()) == 1
    used = {a["href"][1:] for _, a in page.tags if a.get("href", "").startswith("#")}
    used |= set(re.findall(r"url\(#([^)]+)\)", text))
    used |= {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert used <= set(counts)


def test_the_page_is_accessible(text):
    page = Page(text)
    assert page.all("html")[0]["lang"] == "en"
    assert "<title>" in text
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.all("figure")) == len(page.all("svg")) == len(page.all("figcaption")) >= 9
    assert all(svg["role"] == "img" and svg["aria-label"] and svg["width"] == "100%" for svg in page.all("svg"))
    assert len(page.all("caption")) == len(page.all("table")) == 4
    assert all("scope" in header for header in page.all("th"))


def test_whatever_the_names_of_runs_are_the_page_is_one(tmp_path):
    names = (HOSTILE, f"{HOSTILE} and {HOSTILE}", "a\x07b", "\x1b]0;title\x07", "\ud83d", "two\nlines")
    runs = [write_run(tmp_path / f"a & <b>{index}", name=name) for index, name in enumerate(names)]
    write_evaluation(runs[0], {1: 0.5, 6: 0.9}, metric="accuracy")
    write_report(read(*runs), tmp_path / "page.html", title=HOSTILE)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "a &amp; &lt;b&gt;" in text
    assert not Page(text).problems
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) > 3
    assert not set("\x07\x1b") & set("".join(drawings))


def test_equal_runs_give_equal_bytes(render, text):
    assert render() == text


def test_figures_follow_the_theme_of_the_page(folders):
    svg = inline_svg(residual_figure(group_runs(read(*folders))), prefix="p", label='a "label" <&>')
    assert 'aria-label="a &quot;label&quot; &lt;&amp;&gt;"' in svg
    assert "currentColor" in svg
    assert "font-family" not in svg
    assert "#ffffff" not in svg
    assert not re.search(r'<svg[^>]* height="', svg)


def test_what_is_wrong_with_a_run_is_named(tmp_path):
    stopped = write_run(tmp_path / "stopped", stop_at=12)
    early = write_run(tmp_path / "early", stop_at=3, weight=0.5)
    empty = write_run(tmp_path / "empty", stop_at=0, recipe="digits-jr")
    diverged = write_run(tmp_path / "diverged", stop_at=12)
    append(diverged, event="skipped", step=13, reason="the loss is not finite", in_row=1)
    append(diverged, event="diverged", step=13, in_row=1)
    damaged = write_run(tmp_path / "damaged")
    append(damaged, event="evaluation", step=42, accuracy=None, forward_residual=None)
    files = ("diagnosis.json", "evaluation.json", "environment.json")
    for name in files:
        (damaged.path / name).write_text("{")
    # Data of another kind, which is not drawn together with that of the others.
    spoiled = write_run(tmp_path / "spoiled", recipe="synthetic")
    save_weights(spoiled)
    next(spoiled.path.glob("checkpoints/*/model.safetensors")).write_bytes(b"?")
    without_weights = write_run(tmp_path / "without weights", recipe="synthetic", seed=1)
    text = render_report(read(stopped, early, empty, diverged, damaged, spoiled, without_weights))
    assert "<strong>stopped</strong>: Stopped at step 12 of 40." in text
    assert "<strong>early</strong>: Not evaluated yet." in text
    assert "<strong>empty</strong>: Nothing recorded yet." in text
    assert "not evaluated yet</td>" in text
    assert "<strong>diverged</strong>: Diverged at step 13 of 40." in text
    assert "<strong>diverged</strong>: 1 step skipped" in text
    for name in files:
        assert f"{name} cannot be read." in text
    assert "Task: digits</h2>" in text
    assert "Task: synthetic</h2>" in text
    assert "is damaged" in text
    assert "The learned map" not in text


def test_runs_of_the_synthetic_study_show_their_maps_in_a_small_page(tmp_path):
    runs = [write_run(tmp_path / f"{w}", recipe="synthetic", weight=w, num_steps=400) for w in (4.0, 0.0)]
    for run in runs:
        save_weights(run)
    text = render_report(read(*runs))
    assert len(text.encode()) < 500_000
    assert "The learned map</h2>" in text
    assert "Evaluations by weight of the penalty</h2>" in text
    assert text.index("<strong>γ = 0</strong>") < text.index("<strong>γ = 4</strong>")


def test_the_command_gives_the_config_back(tmp_path):
    (run,) = read(write_run(tmp_path / "a", recipe="digits", weight=0.25, seed=3))
    assert rerun_command(run) == [
        "steadeq train digits",
        "--out runs/a",
        "--regularizer.weight 0.25",
        "--loop.num-steps 40",
        "--loop.seed 3",
    ]
    (foreign,) = read(write_run(tmp_path / "b", name="mine; rm"))
    assert rerun_command(foreign)[0] == "steadeq train 'mine; rm'"


def test_recipes_of_files_are_not_executed(tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("raise SystemExit('executed')")
    (run,) = read(write_run(tmp_path / "a", name=f"{recipe}:train", stop_at=0))
    command, comment = rerun_command(run)
    assert command == f"steadeq train {recipe}:train"
    assert comment.startswith("#")
    assert f"{recipe}:train" in render_report([run])


def test_more_sections_come_after_those_of_the_runs(text):
    assert text.index("Convergence of the solves</h2>") < text.index("Mine</h2>") < text.index("What was run</h2>")


def test_a_report_needs_a_run_and_a_place(tmp_path):
    empty = write_run(tmp_path / "empty", stop_at=0)
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(read(empty), empty.metrics_path / "report.html")
    write_report(read(empty), tmp_path / "new" / "report.html")
    text = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert not Page(text).problems


def test_reading_leaves_the_random_state_alone(folders):
    before = torch.get_rng_state()
    for run in read(*folders):
        assert run.num_parameters
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_overflows_in_a_browser(tmp_path, folders, width):
    long = write_run(tmp_path / ("long_name" * 10), name="long_recipe" * 10, stop_at=12)
    toy = write_run(tmp_path / "toy", recipe="synthetic")
    save_weights(toy)
    write_report(read(*folders, long, toy), tmp_path / "report.html")
    # The page itself allows no scripts, so that it is measured from outside, in a frame.
    (tmp_path / "frame.html").write_text(f"""<!DOCTYPE html>
        <iframe id="page" src="report.html" style="border: 0; width: {width}px; height: 3000px"></iframe>
        <script>
        onload = () => {{
          const root = document.getElementById("page").contentDocument;
          const boxes = [...root.querySelectorAll("figure svg")].map((svg) => svg.getBoundingClientRect());
          const smallest = Math.min(...boxes.map((box) => Math.min(box.width, box.height)));
          const widths = [root.documentElement.scrollWidth, root.body.scrollWidth];
          document.title = JSON.stringify({{widths, smallest, number: boxes.length}});
        }};
        </script>""")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--allow-file-access-from-files", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,3000"]
    result = subprocess.run(
        [*command, "--dump-dom", (tmp_path / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    measured = json.loads(re.search("<title>(.*?)</title>", result.stdout)[1])
    assert measured["widths"] == [width, width]
    assert measured["smallest"] > 50
    assert measured["number"] >= 9
    assert "CONSOLE" not in result.stderr


def test_a_line_for_each_model_can_be_pasted_into_a_paper(text):
    (box,) = re.findall(r"To paste into a paper</h3>\n<pre><code>(.*?)</code></pre>", text, flags=re.DOTALL)
    lines = [re.sub(r"<.*?>", "", line) for line in box.splitlines()]
    assert [line.partition(":")[0] for line in lines] == ["digits", "digits-jr"]
    assert all(" on test data; " in line and line.endswith("(2 seeds).") for line in lines)
    assert ["accuracy 93.0%" in line for line in lines] == [True, False]
    assert all("spectral radius 0.800" in line for line in lines)


def test_all_runs_can_be_run_again_from_one_box(text, folders):
    (rest,) = re.findall(r"How to run it again</h3>(.*?)<h3>", text, flags=re.DOTALL)
    assert rest.count("<pre>") == 1
    assert rest.count("steadeq train") == len(folders)
