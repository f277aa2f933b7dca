"""Language models in the loop: texts in order, memory from step to step, perplexity."""

import math
from dataclasses import replace

import pytest
import torch
from lab.train.runs import Crash, assert_same, final_state, train, train_until
from lab.train.test_distributed import assert_close, finish, start_two

from steadeq.lab.cli.main import main
from steadeq.lab.data import Text
from steadeq.lab.errors import InputError, Interrupted
from steadeq.models import Segment
from steadeq.lab.recipes.text import WikiText2Data
from steadeq.lab.recipes.transformers import DEQTransformerModel, TransformerXLModel
from steadeq.solvers import Anderson
from steadeq.lab.train import (
    BackwardConfig,
    ForwardConfig,
    JacobianConfig,
    LanguageModeling,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    Process,
    Run,
    TrainConfig,
    Trainer,
    WarmupConfig,
)
from steadeq.lab.train.batches import StreamBatches
from steadeq.lab.train.evaluation import Evaluator
from steadeq.lab.train.carry import Memories

NUM_WORDS = 15
SIZES = {"num_words": NUM_WORDS, "features": 8, "num_heads": 2, "hidden_features": 12, "memory_length": 6, "std": 0.35}


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch):
    """Put a small text where WikiText-2 is looked for: 13 words and the two that are always there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for split, length in (("train", 150), ("valid", 60), ("test", 40)):
        numbers = [*range(13), *torch.randint(13, (length,), generator=generator).tolist()]
        (folder / f"wiki.{split}.tokens").write_text(" ".join(f"w{number}" for number in numbers) + "\n")


def make_config(model=None, **sections):
    config = TrainConfig(
        recipe="wikitext2-deq-post-cpu",
        model=model or DEQTransformerModel(**SIZES, dropout=0.1, attention_dropout=0.1),
        data=WikiText2Data(length=5),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        forward=ForwardConfig(max_evals=6),
        backward=BackwardConfig(max_evals=6),
        jacobian=JacobianConfig(weight=0.1, probability=0.5),
        warmup=WarmupConfig(num_steps=2, depth=2),
        loop=LoopConfig(num_steps=12, batch_size=4, accumulate=2),
        log=LogConfig(eval_every=5, checkpoint_every=4, eval_batch_size=3, spectrum_samples=2, spectrum_products=4),
    )
    return replace(config, **{name: replace(getattr(config, name), **fields) for name, fields in sections.items()})


MODELS = {
    "deq": None,
    "transformer-xl": TransformerXLModel(**SIZES, num_layers=2, dropout=0.1),
    "no-memory": DEQTransformerModel(**{**SIZES, "memory_length": 0}),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_run_resumes_bit_for_bit_with_its_memory(model, tmp_path):
    config = make_config(MODELS[model])
    train(config, tmp_path / "whole")
    with pytest.raises(Crash):
        train_until(config, tmp_path / "broken", crash_at=6)
    with pytest.raises(Interrupted):
        train_until(config, tmp_path / "broken", stop_at=7)
    train(config, tmp_path / "broken")
    assert_same(final_state(tmp_path / "broken"), final_state(tmp_path / "whole"))


def test_a_run_that_forgets_ends_elsewhere(tmp_path, monkeypatch):
    config = make_config()
    train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train_until(config, tmp_path / "broken", stop_at=6)
    monkeypatch.setattr(Memories, "load_state_dict", lambda self, state: None)
    train(config, tmp_path / "broken")
    whole, broken = (final_state(tmp_path / name)["weights"]["injection.weight"] for name in ("whole", "broken"))
    assert not torch.equal(whole, broken)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_are_one_with_two_parts_and_share_their_memories(tmp_path):
    options = (
        *("--loop.num-steps", "7", "--loop.batch-size", "4", "--loop.ema-decay", "0.9", "--data.length", "5"),
        *("--log.eval-every", "4", "--log.checkpoint-every", "4", "--log.spectrum-samples", "0"),
        *("--model.num-words", str(NUM_WORDS), "--model.features", "8", "--model.num-heads", "2", "--model.cutoffs"),
        *("--model.hidden-features", "12", "--model.memory-length", "6", "--log.eval-batch-size", "3"),
    )
    process = start_two("train", "wikitext2-deq-post-cpu", "--out", str(tmp_path / "two"), *options)
    _, errors = finish(process)
    assert process.returncode == 0, errors
    one = ("train", "wikitext2-deq-post-cpu", "--out", str(tmp_path / "one"), "--loop.accumulate", "2")
    assert main([*one, *options]) == 0
    two, one = final_state(tmp_path / "two"), final_state(tmp_path / "one")
    assert_close(two, one)
    for a, b in zip(two["state"]["memories"], one["state"]["memories"], strict=True):
        assert a.shape == b.shape == (4, 6, b.shape[2])
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_memory_is_handed_on_within_an_epoch_and_forgotten_at_its_end(tmp_path, monkeypatch):
    config = make_config(loop={"num_steps": 16}, log={"eval_every": 16})
    trainer = Trainer(config, Run.create(tmp_path / "run", config))
    assert trainer.batches.steps_per_epoch == 8
    seen = []
    plain = trainer.objective.forward

    def watch(x, y, plan):
        outcome = plain(x, y, plan)
        seen.append((x, outcome.memory))
        return outcome

    monkeypatch.setattr(trainer.objective, "forward", watch)
    trainer.train()
    for index in (0, 1):  # parts of a batch
        given = [x.memory for x, _ in seen[index::2]]
        returned = [memory for _, memory in seen[index::2]]
        assert [step for step, memory in enumerate(given) if memory is None] == [0, 8]
        for step in (1, 2, 9, 15):
            assert_same(given[step], returned[step - 1])
        # Row by row, words go on where those of the step before ended.
        words = torch.cat([x.words for x, _ in seen[index::2][:8]], dim=1)
        streams = trainer.splits.train.streams(4).columns[2 * index : 2 * index + 2].long()
        assert torch.equal(words, streams[:, :40])


def test_the_memory_of_a_bad_step_is_not_kept(tmp_path, monkeypatch):
    config = make_config(log={"eval_every": 12})
    trainer = Trainer(config, Run.create(tmp_path / "run", config))
    plain = trainer.objective.forward
    kept = {}

    def spoil(x, y, plan):
        kept[plan.step] = x.memory
        outcome = plain(x, y, plan)
        if plan.step == 4:
            return replace(outcome, loss=outcome.loss * math.nan, memory=tuple(m * math.nan for m in outcome.memory))
        return outcome

    monkeypatch.setattr(trainer.objective, "forward", spoil)
    trainer.train()
    assert trainer.num_bad == 1
    assert_same(kept[5], kept[4])


def test_perplexity_is_that_of_all_words_with_the_last_short_segment(tmp_path):
    config = make_config()
    model = Trainer(config, Run.create(tmp_path / "run", config)).model.eval()
    text = Text(tokens=torch.randint(NUM_WORDS, (47,), generator=torch.Generator().manual_seed(1)), length=5)
    solver = Anderson(max_evals=60, tol=1e-6)
    measured = Evaluator(task=LanguageModeling(), process=Process(), batch_size=3).measure(model, text, solver)

    columns = text.tokens[:45].reshape(3, 15)
    losses, memory = [], None
    for begin, end in ((0, 5), (5, 10), (10, 14)):
        with torch.no_grad():
            predictions, _ = model(Segment(columns[:, begin:end], memory), solver=solver)
        memory = predictions.memory
        losses.append(predictions.losses(columns[:, begin + 1 : end + 1]))
    loss = torch.cat(losses, dim=1).mean().item()
    assert measured["loss"] == pytest.approx(loss, rel=1e-6)
    assert measured["perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)


def test_training_records_a_perplexity_and_learns(tmp_path):
    # Words that come in a fixed order can be told from the one before.
    folder = tmp_path / "data" / "wikitext-2"
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text((" ".join(f"w{n}" for n in range(13)) + "\n") * 12)
    config = make_config(
        DEQTransformerModel(**SIZES), loop={"num_steps": 80}, warmup={"num_steps": 0}, jacobian={"weight": 0.0}
    )
    trainer = train(config, tmp_path / "run")
    assert trainer.evaluation["perplexity"] == pytest.approx(math.exp(trainer.evaluation["loss"]))
    assert trainer.evaluation["perplexity"] < 5


def test_a_model_with_too_few_words_is_refused(tmp_path):
    config = make_config(DEQTransformerModel(**{**SIZES, "num_words": 9}))
    with pytest.raises(InputError, match="does not fit the data"):
        Trainer(config, Run.create(tmp_path / "run", config))


@pytest.mark.parametrize(("loop", "message"), [({"batch_size": 80}, "too short"), ({"batch_size": 3}, "multiple of")])
def test_a_text_that_is_too_short_is_refused(loop, message, tmp_path):
    config = make_config(loop=loop)
    with pytest.raises(InputError, match=message):
        Trainer(config, Run.create(tmp_path / "run", config))


def test_streams_do_not_depend_on_the_parts_they_are_cut_into():
    text = Text(tokens=torch.arange(101), length=7)
    whole = StreamBatches(text, batch_size=4, num_parts=1)
    parts = StreamBatches(text, batch_size=4, num_parts=2)
    for step in range(5):
        for a, b in zip(whole.get(step, 0), zip(*(parts.get(step, part) for part in (0, 1)), strict=True), strict=True):
            assert torch.equal(a, torch.cat(b))
    assert whole.steps_per_epoch == 3
    assert torch.equal(whole.get(3, 0)[0], whole.get(0, 0)[0]), "the next epoch begins at the beginning"
