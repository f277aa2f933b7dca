"""Language models in the loop: texts in order, a carry from step to step, perplexity."""

import math
from dataclasses import replace

import pytest
import torch
from lab.train.runs import assert_same, change, crash, final_state, train, train_until
from lab.train.test_distributed import assert_close, train_two

from steadeq import GMRES, Anderson, Implicit, JacobianRegularizer
from steadeq.lab.cli.main import main
from steadeq.lab.config import LogConfig, LoopConfig, TrainConfig, WarmupConfig
from steadeq.lab.data import Text, WikiText2
from steadeq.lab.errors import InputError, Interrupted, RunError
from steadeq.lab.optimizers import Adam
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.tasks import LanguageModeling
from steadeq.lab.train import Process, Trainer
from steadeq.lab.train.evaluation import Evaluator
from steadeq.models import DEQTransformerLM, TransformerXL

VOCAB_SIZE = 15
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "features": 8,
    "num_heads": 2,
    "hidden_features": 12,
    "memory_length": 6,
    "std": 0.35,
}


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
        model=model or DEQTransformerLM.Config(**SIZES, dropout=0.1, attention_dropout=0.1),
        data=WikiText2(length=5),
        optimizer=Adam(learning_rate=1e-2),
        solver=Anderson(max_evals=6),
        adjoint=Implicit(GMRES(max_evals=6, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=0.1, probability=0.5),
        warmup=WarmupConfig(num_steps=2, depth=2),
        loop=LoopConfig(num_steps=12, batch_size=4, accumulate=2),
        log=LogConfig(eval_every=5, checkpoint_every=4, eval_batch_size=3, spectrum_samples=2, spectrum_products=4),
    )
    return change(config, **sections)


MODELS = {
    "deq": None,
    "transformer-xl": TransformerXL.Config(**SIZES, num_layers=2, dropout=0.1),
    "no-memory": DEQTransformerLM.Config(**{**SIZES, "memory_length": 0}),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_run_resumes_bit_for_bit_with_its_carry(model, tmp_path):
    config = make_config(MODELS[model])
    train(config, tmp_path / "whole")
    crash(config, tmp_path / "broken", at=6)
    with pytest.raises(Interrupted):
        train_until(config, tmp_path / "broken", stop_at=7)
    train(config, tmp_path / "broken")
    assert_same(final_state(tmp_path / "broken"), final_state(tmp_path / "whole"))


# Sharded ones, with the same carry, are among the quick tests of test_fsdp.py.
@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_are_one_with_two_parts_and_share_their_carry(tmp_path):
    options = (
        *("--loop.num-steps", "7", "--loop.batch-size", "4", "--loop.ema-decay", "0.9", "--data.length", "5"),
        *("--log.eval-every", "4", "--log.checkpoint-every", "4", "--log.spectrum-samples", "0"),
        *("--model.vocab-size", str(VOCAB_SIZE), "--model.features", "8", "--model.num-heads", "2", "--model.cutoffs"),
        *("--model.hidden-features", "12", "--model.memory-length", "6", "--log.eval-batch-size", "3"),
    )
    train_two("wikitext2-deq-post-cpu", "--out", str(tmp_path / "two"), *options)
    one = ("train", "wikitext2-deq-post-cpu", "--out", str(tmp_path / "one"), "--loop.accumulate", "2")
    assert main([*one, *options]) == 0
    two, one = final_state(tmp_path / "two"), final_state(tmp_path / "one")
    assert_close(two, one)
    for a, b in zip(two["state"]["carry"], one["state"]["carry"], strict=True):
        assert a.shape == b.shape == (4, 6, b.shape[2])
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_carry_is_handed_on_within_an_epoch_and_forgotten_at_its_end(tmp_path, monkeypatch):
    config = make_config(loop={"num_steps": 16}, log={"eval_every": 16})
    trainer = Trainer(config, RunFolder.create(tmp_path / "run", config))
    assert trainer.reader.steps_per_epoch == 8
    seen = []
    plain = trainer.train_step.forward

    def watch(x, y, settings, carry):
        result = plain(x, y, settings, carry)
        seen.append((x, carry, result.carry))
        return result

    monkeypatch.setattr(trainer.train_step, "forward", watch)
    trainer.train()
    for index in (0, 1):  # parts of a batch
        given = [carry for _, carry, _ in seen[index::2]]
        returned = [carry for _, _, carry in seen[index::2]]
        assert [step for step, carry in enumerate(given) if carry is None] == [0, 8]
        for step in (1, 2, 9, 15):
            assert_same(given[step], returned[step - 1])
        # Row by row, tokens go on where those of the step before ended.
        tokens = torch.cat([x for x, _, _ in seen[index::2][:8]], dim=1)
        streams = trainer.splits.train.streams(4).columns[2 * index : 2 * index + 2].long()
        assert torch.equal(tokens, streams[:, :40])


def test_the_carry_of_a_bad_step_is_not_kept(tmp_path, monkeypatch):
    config = make_config(log={"eval_every": 12})
    trainer = Trainer(config, RunFolder.create(tmp_path / "run", config))
    plain = trainer.train_step.forward
    kept = {}

    def spoil(x, y, settings, carry):
        kept[settings.step] = carry
        result = plain(x, y, settings, carry)
        if settings.step == 4:
            return replace(result, loss=result.loss * math.nan, carry=tuple(part * math.nan for part in result.carry))
        return result

    monkeypatch.setattr(trainer.train_step, "forward", spoil)
    trainer.train()
    assert trainer.num_bad == 1
    assert_same(kept[5], kept[4])


def test_perplexity_is_that_of_all_tokens_with_the_last_short_segment(tmp_path):
    config = make_config()
    model = Trainer(config, RunFolder.create(tmp_path / "run", config)).model.eval()
    text = Text(tokens=torch.randint(VOCAB_SIZE, (47,), generator=torch.Generator().manual_seed(1)), length=5)
    solver = Anderson(max_evals=60, tol=1e-6)
    measured = Evaluator(task=LanguageModeling(), process=Process(), batch_size=3).measure(model, text, solver)

    columns = text.tokens[:45].reshape(3, 15)
    losses, carry = [], None
    for begin, end in ((0, 5), (5, 10), (10, 14)):
        with torch.no_grad():
            predictions = model(columns[:, begin:end], carry, solver=solver)
        carry = predictions.carry
        losses.append(predictions.losses(columns[:, begin + 1 : end + 1]))
    loss = torch.cat(losses, dim=1).mean().item()
    assert measured.loss == pytest.approx(loss, rel=1e-6)
    assert measured.score == pytest.approx(math.exp(loss), rel=1e-6)


def test_training_records_a_perplexity_and_learns(tmp_path):
    # Words that come in a fixed order can be told from the one before.
    folder = tmp_path / "data" / "wikitext-2"
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text((" ".join(f"w{n}" for n in range(13)) + "\n") * 12)
    config = make_config(
        DEQTransformerLM.Config(**SIZES), loop={"num_steps": 64}, warmup={"num_steps": 0}, regularizer={"weight": 0.0}
    )
    trainer = train(config, tmp_path / "run")
    assert trainer.evaluation["perplexity"] == pytest.approx(math.exp(trainer.evaluation["loss"]))
    assert trainer.evaluation["perplexity"] < 5


@pytest.mark.parametrize(("loop", "message"), [({"batch_size": 80}, "too short"), ({"batch_size": 3}, "multiple of")])
def test_a_text_that_is_too_short_is_refused(loop, message, tmp_path):
    config = make_config(loop=loop)
    with pytest.raises(InputError, match=message):
        Trainer(config, RunFolder.create(tmp_path / "run", config))


def test_a_carry_that_does_not_fit_the_network_is_refused(tmp_path):
    config = make_config()
    crash(config, tmp_path / "run", at=6)
    checkpoints = RunFolder(tmp_path / "run").checkpoints()
    checkpoint = checkpoints.load_latest()
    checkpoint.state["carry"] = [part[..., :3] for part in checkpoint.state["carry"]]
    checkpoints.save(checkpoint)
    with pytest.raises(RunError, match="was not saved by a run"):
        train(config, tmp_path / "run")
