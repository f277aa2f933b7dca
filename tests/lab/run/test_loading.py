"""Models that are loaded: whoever asks for one gets weights that are numbers, or a sentence."""

import math
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from lab.train.runs import make_run, reseal, tiny_config, train
from torch import nn

import steadeq
from steadeq.lab.cli.main import main
from steadeq.lab.errors import InputError, RunError
from steadeq.lab.run.loading import build_model, load_trained, load_weights
from steadeq.models import ToyDEQ

BAD = [math.nan, -math.inf]


CONFIG = tiny_config(loop={"ema_decay": 0.9})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return make_run(tmp_path_factory, CONFIG)


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def spoil(run, name, bad):
    """Put a number that is none into a file of all checkpoints, with checksums that fit."""
    for folder in (run / "checkpoints").iterdir():
        weights = safetensors.torch.load_file(folder / name)
        weights["layer.cell.b"][2] = bad
        safetensors.torch.save_file(weights, folder / name)
        reseal(folder, name)


@pytest.mark.parametrize("bad", BAD)
def test_a_run_whose_weights_are_not_finite_is_refused(bad, run, capfd):
    assert isinstance(steadeq.load_model(run), ToyDEQ)
    spoil(run, "average.safetensors", bad)
    for load in (steadeq.load_model, load_trained):
        with pytest.raises(RunError, match=r"its weight layer\.cell\.b is not finite; train the model again"):
            load(run)
    for command in ("evaluate", "diagnose"):
        assert main([command, str(run)]) == 1
        assert "layer.cell.b is not finite" in capfd.readouterr().err
    assert not (run / "evaluation.json").exists()


def test_a_run_whose_weights_are_not_finite_does_not_go_on(run):
    spoil(run, "model.safetensors", math.nan)
    with pytest.raises(RunError, match=r"its weight layer\.cell\.b is not finite"):
        train(CONFIG, run)


@pytest.mark.parametrize("bad", BAD)
def test_a_model_whose_weights_are_not_finite_is_refused(bad, tmp_path):
    model = ToyDEQ(hidden=10)
    model.save_pretrained(tmp_path / "good")
    assert isinstance(steadeq.load_model(tmp_path / "good"), ToyDEQ)
    with torch.no_grad():
        model.layer.cell.b[2] = bad
    model.save_pretrained(tmp_path / "bad")
    for load in (steadeq.load_model, ToyDEQ.from_pretrained):
        with pytest.raises(ValueError, match=r"bad cannot be used: its weight layer\.cell\.b is not finite"):
            load(tmp_path / "bad")


class Masked(nn.Module):
    """A weight, a mask and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("is_on", torch.tensor(True))


def test_masks_may_be_infinite_and_running_means_may_not():
    weights = Masked().state_dict()
    load_weights(Masked(), weights)
    for bad in (math.nan, math.inf):
        with pytest.raises(RunError, match="its buffer mask is not finite"):
            load_weights(Masked(), {**weights, "mask": torch.tensor([0.0, bad])})


def test_weights_of_another_model_are_refused_by_name():
    weights = build_model(tiny_config()).state_dict()
    with pytest.raises(InputError, match=r"layer\.cell\.b is missing in the checkpoint"):
        load_weights(build_model(tiny_config()), {k: v for k, v in weights.items() if k != "layer.cell.b"})


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.float64])
def test_weights_of_another_dtype_are_refused_rather_than_cast(dtype):
    weights = build_model(tiny_config()).state_dict()
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        InputError, match=rf"layer\.cell\.b is \(\d+,\) of {name} in the checkpoint and \(\d+,\) of float32"
    ):
        load_weights(build_model(tiny_config()), weights | {"layer.cell.b": weights["layer.cell.b"].to(dtype)})
