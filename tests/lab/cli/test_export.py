"""`steadeq export`: what it writes, what it prints, and what it refuses."""

import os

import pytest
import torch
from lab.cli.commands import refuse, succeed
from torch import nn

import steadeq
from steadeq import Picard
from steadeq.export import read_metadata
from steadeq.lab import recipes
from steadeq.lab.cli import export
from steadeq.models import ConvDEQ, DEQTransformerLM, ResNet, ToyDEQ


def test_a_run_becomes_a_file_that_computes_what_its_model_computes(run, home, capfd):
    path = home / "toy.pt2"
    output = succeed(capfd, "export", run, "--evals", "2", "-o", path, "--solver", "Picard")
    assert "2 evaluations by Picard" in output
    assert all(word in output for word in ("eager", "torch.export", "float32 of shape (batch, 1)"))
    x = torch.randn(3, 1)
    with torch.no_grad():
        expected = steadeq.load_model(run)(x, solver=Picard(max_evals=2, tol=0))
    assert (torch.export.load(path).module()(x) - expected).abs().max() < 1e-5
    assert read_metadata(path)["max_evals"] == 2


@pytest.mark.slow
def test_an_onnx_file_is_run_before_it_is_written(run, home, capfd):
    output = succeed(capfd, "export", run, "--evals", "2", "-o", home / "toy.onnx")
    assert "ONNX Runtime" in output
    assert "opset 18" in output


@pytest.mark.slow
def test_models_in_folders_and_explicit_networks_are_exported(home, capfd):
    ConvDEQ(channels=4, hidden=4).save_pretrained(home / "conv")
    succeed(capfd, "export", home / "conv", "--evals", 2, "-o", home / "conv.pt2", "--shape", 1, 8, 8)
    ResNet(widths=(4,), blocks=(1,)).save_pretrained(home / "resnet")
    succeed(capfd, "export", home / "resnet", "-o", home / "resnet.pt2", "--shape", 3, 8, 8, "--batch-size", 1)
    assert torch.export.load(home / "resnet.pt2").module()(torch.randn(5, 3, 8, 8)).shape == (5, 10)


@pytest.mark.slow
def test_a_language_model_is_said_to_have_no_memory(home, capfd):
    DEQTransformerLM(vocab_size=20, features=8, num_heads=2, hidden_features=8).save_pretrained(home / "lm")
    output = succeed(capfd, "export", home / "lm", "--evals", 1, "-o", home / "lm.pt2", "--shape", 5)
    assert "no memory: it reads every sample as the beginning of a text" in output
    assert "torch.int64 of shape (batch, 5)" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--evals 2 -o toy.pth", "must end with .pt2"),
        ("-o toy.pt2", "pass it as --evals"),
        ("--evals 0 -o toy.pt2", "--evals is 0"),
        ("--evals 2 -o nowhere/toy.pt2", "cannot be written; name a file"),
        ("--evals 2 -o .", "cannot be written; name a file"),
        ("--evals 2 -o toy.pt2 --solver Anderson --solver.tol 1e-3", "--solver.tol cannot be used"),
        ("--evals 2 -o toy.pt2 --solver Anderson --solver.max-evals 9", "use --evals"),
        ("--evals 2 -o toy.pt2 --solver NewtonKrylov", "NewtonKrylov cannot be exported"),
        ("--evals 2 -o toy.pt2 --shape 1 0", "all sizes must be at least 1"),
        ("--evals 2 -o toy.pt2 --data digits", "has its own data"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(run, arguments, message, capfd):
    assert message in refuse(capfd, "export", run, *arguments.split())


def test_a_shape_beyond_all_memory_is_a_sentence(run, home, capfd):
    sizes = ["1000000000"] * 3
    line = refuse(capfd, "export", run, "--evals", "2", "-o", "toy.pt2", "--shape", *sizes, code=1)
    assert line.startswith("steadeq: There is not enough memory")


def test_an_explicit_network_takes_no_budget_and_a_folder_says_no_shape(home, capfd):
    ResNet(widths=(4,), blocks=(1,)).save_pretrained(home / "resnet")
    assert "export it without --evals" in refuse(capfd, "export", home / "resnet", "--evals", 2, "-o", home / "a.pt2")
    assert "--shape 3 32 32" in refuse(capfd, "export", home / "resnet", "-o", home / "a.pt2")
    assert "cannot be traced" in refuse(capfd, "export", home / "resnet", "-o", home / "a.pt2", "--shape", 5)


def test_links_are_followed_and_devices_written_to(run, home, capfd):
    (home / "there").mkdir()
    link = home / "link.pt2"
    link.symlink_to(home / "there" / "real.pt2")
    succeed(capfd, "export", run, "--evals", "1", "-o", link, "--solver", "Picard")
    assert link.is_symlink()
    assert (home / "there" / "real.pt2").stat().st_size > 0
    os.symlink(os.devnull, home / "null.pt2")
    succeed(capfd, "export", run, "--evals", "1", "-o", home / "null.pt2", "--solver", "Picard")
    assert (home / "null.pt2").is_symlink()


@pytest.mark.parametrize(
    ("recipe", "twin"),
    [
        ("cifar10-mdeq-cpu-jr", "cifar10-resnet-cpu"),
        ("cifar10-vit-cpu", "cifar10-stacked-vit-cpu"),
        ("cifar10-mdeq", "cifar10-resnet18"),
        ("digits", None),
    ],
)
def test_the_twin_is_an_explicit_network_on_the_same_data(recipe, twin):
    config = recipes.get(recipe).build()
    with torch.device("meta"):
        found = export._find_peer(config, config.model.build())
    assert (found and found[0]) == twin
    assert found is None or isinstance(found[1], nn.Module)


def test_a_model_of_half_precision_is_exported_in_half_precision(home, capfd):
    ToyDEQ(hidden=6).half().save_pretrained(home / "model")
    output = succeed(capfd, "export", home / "model", "--shape", "1", "--evals", "2", "-o", home / "toy.pt2")
    assert "x is torch.float16 of shape (batch, 1)" in output


@pytest.mark.slow
def test_a_program_that_no_runtime_runs_is_not_written(home, capfd):
    ToyDEQ(hidden=6).bfloat16().save_pretrained(home / "model")
    path = home / "toy.onnx"
    said = refuse(capfd, "export", home / "model", "--shape", "1", "--evals", "2", "-o", path)
    assert "does not run on torch.bfloat16" in said
    assert not path.exists()
