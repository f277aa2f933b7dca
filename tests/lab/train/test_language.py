"""Language models in the loop: texts in order, a carry from step to step, perplexity."""

import math
from dataclasses import replace

import pytest
import torch
from lab.data.published import write_words
from lab.train.runs import assert_same, change, crash, final_state, latest, make_trainer, train, train_until

from steadeq import GMRES, Anderson, Implicit, JacobianRegularizer
from steadeq.lab.config import LogConfig, LoopConfig, TrainConfig, WarmupConfig
from steadeq.lab.data import Text, WikiText2
from steadeq.lab.errors import InputError, Interrupted, RunError
from steadeq.lab.optimizers import Adam
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.tasks import LanguageModeling
from steadeq.lab.train import Process
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
    write_words(tmp_path / "data" / "wikitext-2")


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


def test_a_carry_is_handed_on_within_an_epoch_and_forgotten_at_its_end(tmp_path, monkeypatch):
    config = make_config(loop={"num_steps": 16}, log={"eval_every": 16})
    trainer = make_trainer(config, tmp_path / "run")
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
    trainer = make_trainer(config, tmp_path / "run")
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
    model = make_trainer(config, tmp_path / "run").model.eval()
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


@pytest.mark.parametrize(("loop", "message"), [({"batch_size": 80}, "too short"), ({"batch_size": 3}, "multiple of")])
def test_a_text_that_is_too_short_is_refused(loop, message, tmp_path):
    config = make_config(loop=loop)
    with pytest.raises(InputError, match=message):
        make_trainer(config, tmp_path / "run")


def test_a_carry_that_does_not_fit_the_network_is_refused(tmp_path):
    config = make_config()
    crash(config, tmp_path / "run", at=6)
    checkpoint = latest(tmp_path / "run")
    checkpoint.state["carry"] = [part[..., :3] for part in checkpoint.state["carry"]]
    RunFolder(tmp_path / "run").checkpoints().save(checkpoint)
    with pytest.raises(RunError, match="was not saved by a run"):
        train(config, tmp_path / "run")
