"""Recipes of the paper's size make some steps at full model size, on tiny files in the official formats."""

from dataclasses import replace

import pytest
import torch
from lab.data.pictures import write
from lab.data.published import write_cifar, write_texts
from PIL import Image

from steadeq.jacobian.schedules import Increments
from steadeq.lab import recipes
from steadeq.lab.config import RandomBudget
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord
from steadeq.lab.tasks import LanguageModeling
from steadeq.lab.train import Trainer

NAMES = [n for n in recipes.names() if recipes.get(n).scale == "paper"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path))
    write_cifar(tmp_path / "cifar-10-batches-bin")
    for part in ("train", "val"):
        write(tmp_path / "imagenet" / part, {"n01": 4, "n02": 4}, ".JPEG", width=270, height=240)
        for index in range(4):
            for kind, mode, suffix in (("leftImg8bit", "RGB", "leftImg8bit"), ("gtFine", "L", "gtFine_labelIds")):
                folder = tmp_path / "cityscapes" / kind / part / "ulm"
                folder.mkdir(parents=True, exist_ok=True)
                # The label 7 is the road.
                color = (40 * index, 100, 50) if mode == "RGB" else 7 + index % 2
                Image.new(mode, (128, 64), color).save(folder / f"ulm_{index}_{suffix}.png")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = torch.randint(400, (3, 1000), generator=torch.Generator().manual_seed(0)).tolist()
    write_texts(tmp_path / "wikitext-103", *(" ".join(map(str, text)) + "\n" for text in words))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_of_the_papers_size_makes_steps_of_both_phases(name, files):
    config = recipes.get(name).build()
    small = {
        "cifar10": {"num_train": 12, "num_validation": 4},
        "cityscapes": {"num_validation": 2, "num_workers": 0, "crop": (64, 128)},
        "imagenet": {"num_validation": 2, "num_workers": 0},
        "synthetic": {},
        "wikitext-103": {"max_validation": 302},
    }
    schedule = config.regularizer.schedule
    config = replace(
        config.with_max_evals(4),
        data=replace(config.data, **small[config.data.name]),
        # One step unrolled if the recipe has such a phase, and two that solve; the budgets are cut to save time.
        warmup=replace(config.warmup, num_steps=min(config.warmup.num_steps, 1), depth=2),
        budget=RandomBudget(),
        regularizer=replace(
            config.regularizer,
            probability=1.0,
            schedule=replace(schedule, begin=0) if isinstance(schedule, Increments) else schedule,
        ),
        loop=replace(config.loop, num_steps=3, batch_size=2),
        log=replace(
            config.log, every=1, spectrum_samples=1, spectrum_products=2, eval_batch_size=2, checkpoint_every=3
        ),
    )
    trainer = Trainer(config, RunFolder.create(files / "run", config))
    before = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    record = RunRecord.read(files / "run")
    score, task = record.validations[-1].score, config.data.task
    assert score > 1 if isinstance(task, LanguageModeling) else score >= 0
    assert score <= 1 or not task.higher_is_better
    assert [line.num_skipped for line in record.training] == [0, 0, 0]
    assert (record.training[-1].jacobian_norm is not None) == config.regularizer.is_active
    moved = [name for name, parameter in trainer.model.named_parameters() if not torch.equal(parameter, before[name])]
    # Clusters of rare words do not occur in so short a text.
    assert len(moved) > (0.6 if isinstance(task, LanguageModeling) else 0.9) * len(before)
