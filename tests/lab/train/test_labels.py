"""Labels that a network has no output for are found before the run begins."""

from dataclasses import dataclass

import pytest
import torch
from lab.train.runs import tiny_config
from torch.utils.data import TensorDataset

from steadeq.lab.data import AbstractDataConfig, InMemory, Splits
from steadeq.lab.errors import InputError
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.tasks import Classification
from steadeq.lab.train import Trainer
from steadeq.models import ConvDEQ


@dataclass(frozen=True, kw_only=True)
class Labeled(AbstractDataConfig):
    """Images of ten classes, of which the last one of a split may be something else."""

    name = "labeled"
    task = Classification()

    split: str = "train"
    label: int = 9
    is_foreign: bool = False

    def load(self) -> Splits:
        return Splits(**{name: self._samples(name) for name in ("train", "validation", "test")})

    def _samples(self, name: str):
        # More than are looked at before the run begins.
        labels = torch.arange(40) % 10
        if name == self.split:
            labels[-1] = self.label
        if self.is_foreign:
            return TensorDataset(torch.zeros(40, 1, 8, 8), labels)
        return InMemory(inputs=torch.zeros(40, 1, 8, 8), targets=labels)


def make_trainer(path, **fields) -> Trainer:
    model = ConvDEQ.Config(channels=4, hidden=4, groups=2)
    config = tiny_config("digits", model=model, data=Labeled(**fields), loop={"num_steps": 5, "batch_size": 8})
    return Trainer(config, RunFolder(path))


@pytest.mark.parametrize("label", [10, 255, -1])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_label_beyond_the_classes_of_the_model_is_one_sentence_before_the_run_begins(split, label, tmp_path):
    with pytest.raises(InputError, match=rf"^model\.num_classes is 10, but the data has a label {label};"):
        make_trainer(tmp_path / "run", split=split, label=label)
    assert not (tmp_path / "run").exists()


def test_a_label_of_a_data_set_that_is_not_in_memory_is_one_sentence_when_it_is_read(tmp_path):
    trainer = make_trainer(tmp_path / "run", label=10, is_foreign=True)
    RunFolder.create(tmp_path / "run", trainer.config)
    with pytest.raises(InputError, match=r"label 10;"):
        trainer.train()


def test_labels_of_the_model_are_trained_on(tmp_path):
    trainer = make_trainer(tmp_path / "run")
    RunFolder.create(tmp_path / "run", trainer.config)
    assert "accuracy" in trainer.train()
