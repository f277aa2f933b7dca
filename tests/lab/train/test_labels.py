"""Labels that a network has no output for are found before the run begins."""

from dataclasses import dataclass

import pytest
import torch
from lab.train.runs import tiny_config

from steadeq.lab.data import AbstractDataConfig, InMemory, Splits
from steadeq.lab.errors import InputError
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.tasks import Classification
from steadeq.lab.train import Trainer
from steadeq.models import ConvDEQ


@dataclass(frozen=True, kw_only=True)
class Labeled(AbstractDataConfig):
    """Images of ten classes, of which the last one of a split is something else."""

    name = "labeled"
    task = Classification()

    split: str
    label: int

    def load(self) -> Splits:
        return Splits(**{name: self._samples(name) for name in ("train", "validation", "test")})

    def _samples(self, name: str):
        # More than are looked at before the run begins.
        labels = torch.arange(40) % 10
        if name == self.split:
            labels[-1] = self.label
        return InMemory(inputs=torch.zeros(40, 1, 8, 8), targets=labels)


# What is read later, and labels that are right, are in lab/data/test_readers.py.
@pytest.mark.parametrize(("split", "label"), [("train", 10), ("validation", 255), ("test", -1)])
def test_a_label_beyond_the_classes_of_the_model_is_one_sentence_before_the_run_begins(split, label, tmp_path):
    model = ConvDEQ.Config(channels=4, hidden=4, groups=2)
    config = tiny_config("digits", model=model, data=Labeled(split=split, label=label), loop={"batch_size": 8})
    with pytest.raises(InputError, match=rf"^model\.num_classes is 10, but the data has a label {label};"):
        Trainer(config, RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
