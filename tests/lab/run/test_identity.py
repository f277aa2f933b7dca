"""A run is tied to its config, its data and its vocabulary; others are refused, however like they look."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from lab.train.runs import crash, tiny_config

from steadeq.codec import to_plain
from steadeq.lab.cli.main import main
from steadeq.lab.errors import InputError
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.identity import Identity, _flatten
from steadeq.lab.train import Process, Trainer

OPTIONS = (
    *("--loop.num-steps", "4", "--loop.batch-size", "4", "--loop.device", "cpu", "--log.eval-every", "4"),
    *("--log.checkpoint-every", "2", "--log.spectrum-samples", "0", "--log.eval-batch-size", "3", "--data.length", "5"),
    *("--model.cutoffs", "5", "--model.features", "8", "--model.num-heads", "2", "--model.hidden-features", "12"),
    *("--model.memory-length", "6", "--warmup.num-steps", "1", "--solver.max-evals", "3"),
)


def write_text(folder: Path, *, seed: int = 0, words: str = "w", factor: int = 1) -> None:
    """Write a text of 13 words, which all other texts of this function have too, as often, and in another order."""
    draw = random.Random(0)
    (folder / "wikitext-2").mkdir(parents=True, exist_ok=True)
    for split, length in (("train", 150), ("valid", 60), ("test", 40)):
        text = [
            f"{words}{number * factor % 13:02d}"
            for number in (*range(13), *(draw.randrange(13) for _ in range(length)))
        ]
        # What comes first keeps its place, as it decides on the numbers of words that are equally frequent.
        tail = text[13:]
        random.Random(seed).shuffle(tail)
        (folder / "wikitext-2" / f"wiki.{split}.tokens").write_text(" ".join([*text[:13], *tail]) + "\n")


def train_text(*more: str) -> int:
    return main(["train", "wikitext2-deq-post-cpu", "--out", "run", *OPTIONS, "--model.vocab-size", "15", *more])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identity")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("STEADEQ_DATA", str(folder / "data"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        write_text(folder / "data")
        assert train_text() == 0
    return folder


@pytest.fixture
def home(trained, tmp_path, monkeypatch):
    """A folder with the run, at its second of four steps, and its text."""
    home = Path(shutil.copytree(trained, tmp_path / "home"))
    shutil.rmtree(home / "run" / "checkpoints" / "step-00000004")
    monkeypatch.chdir(home)
    monkeypatch.setenv("STEADEQ_DATA", str(home / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    return home


USES = {
    "resume": ("train", "--resume", "--out", "run"),
    "evaluate": ("evaluate", "run", "--budgets", "2"),
    "diagnose": ("diagnose", "run", "--num-samples", "2", "--max-evals", "16", "--max-products", "2"),
    "generate": ("generate", "run", "--prompt", "w01", "--num-tokens", "2"),
}


def test_the_text_of_the_run_will_do(home, capfd):
    for arguments in USES.values():
        assert main(arguments) == 0, capfd.readouterr().err


def assert_refused(capfd, uses, reason: str) -> None:
    for use in uses:
        assert main(USES[use]) == 2
        assert reason in capfd.readouterr().err.splitlines()[-1], use


def test_another_text_of_the_same_words_and_size_is_refused(home, capfd):
    size = (home / "data/wikitext-2/wiki.train.tokens").stat().st_size
    write_text(home / "data", seed=1)
    assert (home / "data/wikitext-2/wiki.train.tokens").stat().st_size == size
    assert_refused(capfd, ["resume", "evaluate", "diagnose"], "run was trained with other data")


@pytest.mark.parametrize("change", [{"words": "v"}, {"factor": 5}], ids=["other words", "permuted words"])
def test_another_vocabulary_of_the_same_size_is_refused(change, home, capfd):
    # All numbers of the text are what they were.
    write_text(home / "data", **change)
    assert_refused(capfd, USES, "run was trained with another vocabulary")


def test_a_vocabulary_that_the_model_has_no_room_for_is_refused_at_the_start(home, capfd):
    shutil.rmtree(home / "run")
    assert train_text("--model.vocab-size", "14") == 2
    assert (
        "model.vocab_size is 14, and the vocabulary of wikitext-2 has 15 tokens: --model.vocab-size 15"
        in capfd.readouterr().err
    )
    assert not (home / "run").exists()


def test_a_model_with_room_for_more_tokens_than_there_are_is_said_at_the_start(home, caplog):
    shutil.rmtree(home / "run")
    assert train_text("--model.vocab-size", "16") == 0
    assert "model.vocab_size is 16, and the vocabulary of wikitext-2 has 15 tokens" in caplog.text
    assert main(USES["generate"]) == 0


class Disagreeing(Process):
    """One of several processes, of which another one has another config or other data."""

    def agrees(self, text: str) -> bool:
        return False


def test_processes_that_were_given_different_things_do_not_begin(tmp_path):
    with pytest.raises(InputError, match="The processes were given different configs, different data"):
        Trainer(tiny_config(), RunFolder(tmp_path / "run"), process=Disagreeing())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("field", [("loop", {"seed": 1}), ("solver", {"max_evals": 7}), ("data", {"seed": 5})])
def test_processes_of_one_run_are_told_from_those_of_another(field, tmp_path):
    digests = {
        Trainer(config, RunFolder(tmp_path / "run")).identity.digest()
        for config in (tiny_config(), tiny_config(), tiny_config(**dict([field])))
    }
    assert len(digests) == 2


def test_a_trainer_with_another_config_does_not_go_on(tmp_path):
    crash(tiny_config(), tmp_path / "run", at=6)
    other = tiny_config(regularizer={"weight": 0.123})
    with pytest.raises(InputError, match=r"regularizer\.weight is 0\.123"):
        Trainer(other, RunFolder(tmp_path / "run")).resume()


def test_a_field_that_is_younger_than_the_run_has_its_default(tmp_path):
    config = tiny_config()
    identity = Identity(config=_flatten(to_plain(config)), data={}, vocabulary=None)
    # As written by a version that did not have these fields.
    for name in ("solver.causal", "loop.stop_diverged"):
        del identity.config[name]
    identity.check_config(config, tmp_path)
    changed = replace(config, solver=replace(config.solver, causal=True))
    with pytest.raises(InputError, match=r"solver\.causal is True"):
        identity.check_config(changed, tmp_path)
