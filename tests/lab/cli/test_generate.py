"""`steadeq generate`: tokens of a run, what they cost, and one sentence where there are none."""

import math
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from lab.cli.commands import refuse
from lab.data.published import write_texts
from lab.train.runs import snapshot, start, tiny_config, train

from steadeq import Anderson, OneStep
from steadeq.lab.cli import generate as command
from steadeq.lab.cli.main import main
from steadeq.lab.config import LogConfig, LoopConfig, TrainConfig
from steadeq.lab.data import WikiText2
from steadeq.lab.optimizers import Adam
from steadeq.lab.run.record import RunRecord
from steadeq.models import DEQTransformerLM, EquilibriumTransformer, StackedTransformer, TransformerXL

LINE = "the cat sat on the mat and saw a dog"
SIZES = {"vocab_size": 11, "features": 8, "num_heads": 2, "hidden_features": 12, "memory_length": 12, "std": 0.3}
MODERN = {"kind": "language", "vocab_size": 11, "features": 16, "num_heads": 2, "hidden_features": 24}


def write_corpus(folder, line=LINE):
    # One word that is read as <unk>, so that the model expects it.
    write_texts(folder / "wikitext-2", *(f"{line} <unk>\n" * count for count in (30, 4, 4)))


def make_config(model):
    return TrainConfig(
        recipe="wikitext2-deq-post-cpu",
        model=model,
        data=WikiText2(length=8),
        optimizer=Adam(learning_rate=2e-2),
        solver=Anderson(max_evals=8, tol=1e-3),
        adjoint=OneStep(),
        loop=LoopConfig(num_steps=40, batch_size=4),
        log=LogConfig(eval_every=40, checkpoint_every=20, eval_batch_size=3, spectrum_samples=0),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs of an equilibrium model, of an explicit one, and of one that has nothing to do with words."""
    folder = tmp_path_factory.mktemp("finished")
    write_corpus(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("STEADEQ_DATA", str(folder / "data"))
        train(make_config(DEQTransformerLM.Config(**SIZES, dropout=0.1)), folder / "deq")
        train(make_config(TransformerXL.Config(**SIZES, num_layers=2)), folder / "explicit")
        train(make_config(EquilibriumTransformer.Config(**MODERN)), folder / "modern")
        train(make_config(StackedTransformer.Config(**MODERN, depth=2)), folder / "stacked")
        train(tiny_config(), folder / "synthetic")
    return folder


@pytest.fixture(autouse=True)
def folder(finished, home):
    """A folder with the runs and their text."""
    return Path(shutil.copytree(finished, home, dirs_exist_ok=True))


def generate(capfd, *arguments: str) -> tuple[str, str]:
    """Return what was written, and what was said beside it."""
    before = snapshot(Path.cwd())
    capfd.readouterr()
    assert main(["generate", *arguments]) == 0
    assert snapshot(Path.cwd()) == before
    return capfd.readouterr()


@pytest.fixture
def given(monkeypatch):
    """What the command passes on to `steadeq.generate`."""
    options, plain = {}, command.generate

    def watch(model, prompt, **others):
        options.update(others)
        return plain(model, prompt, **others)

    monkeypatch.setattr(command, "generate", watch)
    return options


def test_a_language_model_records_a_perplexity_and_learns():
    last = RunRecord.read("deq").validations[-1]
    # Of 11 tokens.
    assert last.score == pytest.approx(math.exp(last.loss))
    assert last.score < 5


# Tokens


def test_tokens_go_on_where_the_prompt_ends(capfd):
    output, errors = generate(capfd, "deq", "--prompt", "the cat sat on", "--num-tokens", "30")
    assert output.endswith("\n")
    words = output.split()
    assert set(words) <= set(LINE.split())
    # The end of a line is a word of its own.
    assert len(words) + output.count("\n") in (30, 31)
    assert re.fullmatch(r"30 tokens, \d\.\d\d evaluations per token, [\d.e-]+ seconds per token\n", errors)


@pytest.mark.parametrize("run", ["deq", "explicit", "modern", "stacked"])
def test_a_seed_stands_for_a_text(run, capfd):
    texts = [generate(capfd, run, "--num-tokens", "20", "--seed", seed).out for seed in "001"]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("run", ["explicit", "modern", "stacked"])
def test_a_trained_model_has_learned_its_line(run, given, capfd):
    prompt = f"{LINE} <unk>\nthe cat"
    output, errors = generate(capfd, run, "--prompt", prompt, "--temperature", "0", "--num-tokens=5")
    assert output == "sat on the mat and\n"
    assert ("evaluations" in errors) == (run == "modern")
    # One without a carry reads as many tokens as in training.
    assert given["context"] == 8


@pytest.mark.parametrize(
    "prompts", [(None, "", "  ", "<eos>", "\n"), ("a\nthe", "a <eos> the")], ids=["no prompt", "lines"]
)
def test_an_end_of_line_is_a_word_with_which_a_text_begins(prompts, capfd):
    texts = [generate(capfd, "deq", "--num-tokens", "10", *(() if p is None else ("--prompt", p))).out for p in prompts]
    assert len(set(texts)) == 1


def test_words_that_the_model_does_not_know_are_named(capfd):
    output, errors = generate(capfd, "deq", "--prompt", "the zebra saw the yak , the yak")
    assert errors.splitlines()[0] == "steadeq: not in the vocabulary, and read as <unk>: zebra, yak, ,"
    assert output == generate(capfd, "deq", "--prompt", "the <unk> saw the <unk> <unk> the <unk>").out


def test_unk_comes_only_if_it_is_allowed(capfd):
    arguments = ("explicit", "--num-tokens", "60")
    assert "<unk>" not in generate(capfd, *arguments).out
    assert "<unk>" in generate(capfd, *arguments, "--allow-unk").out


def test_options_of_the_sampling_and_the_solves_are_passed_on(given, capfd):
    options = "--temperature 0.5 --top-k 3 --top-p 0.8 --max-evals 5 --tol 0.01 --no-warm-start --num-tokens 4"
    generate(capfd, "deq", "--prompt", "the", *options.split())
    assert (given["temperature"], given["top_k"], given["top_p"], given["num_tokens"]) == (0.5, 3, 0.8, 4)
    assert (given["solver"].max_evals, given["solver"].tol, given["warm_start"]) == (5, 0.01, False)
    generate(capfd, "deq")
    assert (given["solver"].max_evals, given["solver"].tol, given["warm_start"]) == (8, 1e-3, True)


def test_a_checkpoint_is_chosen_by_its_step(capfd):
    arguments = ("explicit", "--num-tokens", "3", "--stats")
    late, early = generate(capfd, *arguments).out, generate(capfd, *arguments, "--step", "20").out
    assert late != early


# What it costs


def test_stats_are_one_line_for_each_token(capfd):
    output, errors = generate(capfd, "deq", "--num-tokens", "12", "--stats")
    rows = [line.split("\t") for line in output.splitlines()]
    assert len(rows) == 12
    text = generate(capfd, "deq", "--num-tokens", "12").out
    assert [row[0] for row in rows] == text.replace("\n", " <eos> ").split()[:12]
    assert all(float(row[1]) <= 0 for row in rows)
    evals = sum(int(row[2]) for row in rows) / 12
    assert f"{evals:.2f} evaluations per token" in errors
    # An explicit network has none.
    output, _ = generate(capfd, "explicit", "--num-tokens", "5", "--stats")
    assert all(line.count("\t") == 1 for line in output.splitlines())


def test_both_starts_are_compared(capfd):
    output, errors = generate(capfd, "deq", "--compare", "--num-tokens", "10")
    rows = [line.split() for line in output.splitlines() if re.match(r"\s*(0\.001|1e-08)\s", line)]
    assert [row[0] for row in rows] == ["0.001", "1e-08"]
    for row in rows:
        zero, last, saved = float(row[1]), float(row[2]), float(row[3].rstrip("%"))
        assert saved == pytest.approx(100 * (1 - last / zero), abs=0.6)
        assert row[4] in ("all", "the")
    stats = generate(capfd, "deq", "--no-warm-start", "--num-tokens", "10").err
    assert f"{rows[0][1]} evaluations per token" in stats
    assert errors == ""


# Refusals


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("synthetic", "synthetic is a run on synthetic, which is not text"),
        ("deq --num-tokens 0", "--num-tokens is 0; it must be at least 1."),
        ("deq --tol 2", "--tol is 2.0; it must be in [0, 1)."),
        ("deq --seed 9223372036854775808", "--seed is 9223372036854775808; it must be an integer of at most 9.2e+18"),
        ("deq --temperature -1", "--temperature is -1.0; it must be a finite number >= 0."),
        ("deq --top-p 1.5", "--top-p is 1.5; it must be in (0, 1]."),
        ("deq --step 7", "7"),
        ("explicit --compare", "cannot use --compare"),
        ("explicit --max-evals 3", "cannot use --max-evals"),
        ("explicit --tol 0", "cannot use --tol"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, problem, capfd):
    assert problem in refuse(capfd, "generate", *arguments.split())


def test_a_text_that_is_missing_or_another_than_in_training_is_refused(folder, capfd):
    write_corpus(folder / "data", line=f"{LINE} again")
    assert "The model of deq has 11 tokens, and wikitext-2 has 12 here" in refuse(capfd, "generate", "deq")
    (folder / "data").rename("elsewhere")
    assert "The data of wikitext-2 is missing" in refuse(capfd, "generate", "deq")


# Interruption


def test_an_interrupt_ends_the_line_and_says_how_far_it_came(capfd, monkeypatch):
    plain = command.generate

    def interrupted(*arguments, **options):
        for count, step in enumerate(plain(*arguments, **options)):
            if count == 3:
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(command, "generate", interrupted)
    assert main(["generate", "deq", "--prompt", "the"]) == 130
    output, errors = capfd.readouterr()
    assert output.endswith("\n")
    assert errors == "steadeq: Stopped after 3 of 50 tokens.\n"


def test_tokens_are_shown_as_they_come_and_a_signal_ends_them():
    process = start("generate", "deq", "--num-tokens", "100000000", "--stats")
    try:
        # A line that arrives is proof that nothing waits for the end.
        assert process.stdout.readline().count("\t") == 2
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert re.fullmatch(r"steadeq: Stopped after \d+ of 100000000 tokens\.\n", errors)
