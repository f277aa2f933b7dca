"""`steadeq reproduce`: what it lists, trains, draws and prints."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from steadeq.lab import recipes
from steadeq.lab.cli.arguments import parse_with_config
from steadeq.lab.cli.main import main
from steadeq.lab.cli.train import Arguments
from steadeq.lab.serialization import differences
from steadeq.paper import command
from steadeq.paper.catalog import RESULTS
from steadeq.paper.comparison import Comparison
from steadeq.paper.result import HARDWARE, count
from steadeq.paper.tables import Column
from steadeq.paper.variant import Variant


def test_all_results_are_listed_with_what_held_and_not_what_the_paper_claims(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main(["reproduce"]) == 0
    shown = capsys.readouterr().out
    assert "45 min" in shown
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    here = {name: result for name, result in RESULTS.items() if "cpu" in result.scales}
    assert here.keys() == RESULTS.keys() & lines.keys()
    for name, result in here.items():
        if (Path("results") / name / "summary.json").is_file():
            _, verdicts = result.read(Path("results") / name)
            assert lines[name].rstrip().endswith(count(verdicts, "paper"))
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "--scale", "day"]) == 0
    shown = capsys.readouterr().out
    assert " attention " in shown
    assert shown.count("not run yet") == sum("day" in result.scales for result in RESULTS.values())
    assert main(["reproduce", "all", "--scale", "paper", "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["memory", "--scale", "paper"], "memory is the same at every scale; leave out --scale."),
        (["attention"], "There is no attention at the scale cpu; --scale can be day."),
        (["tabel1"], "no table or figure 'tabel1'. Did you mean 'table1'?"),
        (["table1", "--jobs", "0"], "--jobs is 0; it must be at least 1."),
        (["softplus", "--quick"], "no part that is quick"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(words, sentence, capsys):
    assert main(["reproduce", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_the_plan_is_shown_and_nothing_is_made(tmp_path, capsys):
    options = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(["reproduce", "fig5", *options]) == 0
    assert capsys.readouterr().out.count("missing") == 12
    assert main(["reproduce", "table1", "--scale", "day", *options]) == 0
    shown = capsys.readouterr().out
    runs = RESULTS["table1"].minutes("day")
    assert f"{len(runs)} runs, {sum(runs.values()) / 60:.1f} core-hours" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, scale) for name, result in RESULTS.items() for scale in HARDWARE if scale in result.scales],
)
def test_commands_train_what_is_wanted(name, scale, tmp_path):
    configs = RESULTS[name].runs(scale)
    for (run, config), words in zip(configs.items(), command.commands(configs, tmp_path), strict=True):
        if config.loop.seed > 1:
            # As the one before.
            continue
        recipe, *options = shlex.split(shlex.join(words))
        args, parsed = parse_with_config(
            Arguments, options, config=recipes.get(recipe).build(), command="train", summary=""
        )
        assert parsed == config, differences(parsed, config)
        assert args.out == tmp_path / run


def test_the_papers_runs_are_printed_as_commands(tmp_path, capsys):
    assert main(["reproduce", "fig3-4", "--scale", "paper", "--runs", str(tmp_path)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("Train these on your GPUs")
    assert len(lines) == 5
    assert all(line.startswith("torchrun --nproc-per-node 4 -m steadeq train wikitext103-deq-") for line in lines)
    assert any("--model.no-weight-norm" in line for line in lines)


def test_runs_are_trained_drawn_and_judged(tmp_path, monkeypatch, capsys):
    def short(config):
        return replace(config, loop=replace(config.loop, num_steps=2), log=replace(config.log, spectrum_samples=0))

    result = Comparison(
        name="made-up",
        title="Made up",
        statement="",
        variants=lambda scale: [Variant(name="a", recipe="synthetic", max_evals=2, seeds=(0,), change=short)],
        claims=[
            Column(title="error", measure="score").claim(
                "it is itself", "a", "a", lambda a, b: a == b, section="5.2, Table 1", source="own"
            )
        ],
    )
    monkeypatch.setattr(command, "RESULTS", {"made-up": result})
    options = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert main(["reproduce", "made-up", *options]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("holds", "5.2, Table 1", "own", "Claims of our own that hold: 1 of 1."))
    summary, verdicts = result.read(tmp_path / "out" / "made-up")
    assert [verdict.outcome for verdict in verdicts] == ["holds"]
    assert summary["a"].num_seeds == 1
    assert main(["reproduce", "made-up", *options, "--dry-run"]) == 0
    assert "finished" in capsys.readouterr().out
