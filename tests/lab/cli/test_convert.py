"""From a checkpoint of the authors to its numbers: `steadeq convert` and `steadeq evaluate`."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from lab.cli.commands import refuse, succeed
from lab.data.published import write_cifar, write_texts
from safetensors.torch import load_file
from torch.nn import functional as F

import steadeq
from steadeq import Anderson, Broyden
from steadeq.lab.data import WikiText2
from steadeq.lab.errors import InputError
from steadeq.models import (
    DEQTransformerLM,
    EquilibriumTransformer,
    MDEQClassifier,
    ResNet,
    StackedTransformer,
    from_official,
)

PARITY = Path(__file__).parents[2] / "models" / "parity"
WORDS = f" {'the of a = , . @ to in on ' * 40}\n"


@pytest.fixture
def checkpoint(home):
    """The multiscale DEQ of the parity test, as the official training would have saved it."""
    tensors = load_file(PARITY / "mdeq_tiny.safetensors")
    state = {f"module.{key[6:]}": tensor for key, tensor in tensors.items() if key.startswith("state/")}
    path = home / "checkpoint.pth.tar"
    torch.save({"epoch": 50, "state_dict": state, "perf": 0.7}, path)
    return path


SMALL = ("--data", "cifar10", "--data.num-train", "10", "--data.num-validation", "0")


# Convert


def test_a_checkpoint_becomes_a_folder_and_what_was_found_is_told(checkpoint, home, capfd):
    output = succeed(capfd, "convert", checkpoint, "--out", home / "tiny")
    model = from_official(checkpoint)
    count = sum(p.numel() for p in model.parameters())
    assert output.splitlines()[0] == f"MDEQClassifier, {count:,} parameters"
    told, assumed = output.splitlines()[1:3]
    assert told.startswith(
        "Inferred from the weights: channels=(24, 24), image_channels=3, num_downsamplings=0, expansion=5"
    )
    assert assumed == "Assumed (preset mdeq/cifar10-tiny): groups=8, dropout=0.25"
    loaded = MDEQClassifier.from_pretrained(home / "tiny")
    assert loaded.config == model.config
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))


def test_a_preset_takes_the_place_of_what_is_inferred(checkpoint, home, capfd):
    output = succeed(capfd, "convert", checkpoint, "--preset", "mdeq/cifar10-tiny", "-o", "tiny")
    assert "Assumed (preset mdeq/cifar10-tiny)" in output
    for preset, reason in (
        ("mdeq/cifar10", "its weights have channels=(24, 24)"),
        ("mdeq/cifar", "There is no model 'mdeq/cifar'"),
    ):
        assert reason in refuse(capfd, "convert", checkpoint, "--preset", preset, "-o", "b")


def test_bad_checkpoints_are_refused_and_nothing_is_written(checkpoint, home, capfd):
    torch.save(torch.nn.Linear(2, 2), "module.pt")
    torch.save(ResNet(blocks=(1,), widths=(4,)).state_dict(), "resnet.pt")
    Path("half.pt").write_bytes(checkpoint.read_bytes()[:1000])
    for name, reason in (
        ("module.pt", "besides tensors"),
        ("resnet.pt", "does not hold a known network of locuslab/deq"),
        ("half.pt", "is damaged"),
        ("missing.pt", "cannot be read: No such file"),
    ):
        line = refuse(capfd, "convert", name, "-o", "out")
        assert line.startswith(f"steadeq: {name}")
        assert reason in line
    assert "--out is missing" in refuse(capfd, "convert", checkpoint)
    Path("full").mkdir()
    Path("full", "notes.txt").write_text("mine")
    assert "full exists already" in refuse(capfd, "convert", checkpoint, "-o", "full")


# Load


def test_load_model_reads_the_folder_as_it_reads_a_run(checkpoint, run, capfd):
    succeed(capfd, "convert", checkpoint, "-o", "tiny")
    model = steadeq.load_model("tiny")
    assert isinstance(model, MDEQClassifier)
    assert not model.training
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(x), from_official(checkpoint)(x))
    assert type(steadeq.load_model(run)).__name__ == "ToyDEQ"
    with pytest.raises(InputError, match="tiny holds a model, not a run; it has no checkpoint of step 3"):
        steadeq.load_model("tiny", step=3)
    Path("tiny/model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors cannot be read"):
        steadeq.load_model("tiny")


OWN = """
from dataclasses import dataclass, replace
from torch import nn
from steadeq.lab.recipes.digits import digits
from steadeq.models import AbstractModelConfig, PretrainedModel

class Own(PretrainedModel):
    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        width: int = 3
        def build(self):
            return Own(self)

    def __init__(self, config):
        super().__init__()
        self.config, self.linear = config, nn.Linear(config.width, 1)

def recipe():
    return replace(digits(), model=Own.Config(width=2))
"""


def test_the_folder_of_a_model_of_a_user_needs_the_recipe(home):
    Path("own_model.py").write_text(OWN)
    # In a process that has not imported the file, its classes are not known: here they have another name.
    names = {"__name__": "another"}
    exec(compile(OWN, "own_model.py", "exec"), names)
    names["recipe"]().model.build().save_pretrained("own")
    config = Path("own/config.json")
    config.write_text(config.read_text().replace("another:", "own_model:"))
    with pytest.raises(InputError, match=r"class is 'own_model:Own.Config', which is not an imported PretrainedModel"):
        steadeq.load_model("own")
    assert "own_model" not in sys.modules
    assert steadeq.load_model("own", recipe="own_model.py:recipe").linear.in_features == 2


# Evaluate


def rows_of(folder):
    """Return the rows of the table that was written."""
    return json.loads(Path(folder, "evaluation.json").read_text())["rows"]


@torch.no_grad()
def by_hand(model, images, labels, solver):
    """Return the accuracy and the loss, as the official test computes them, and the mean number of evaluations."""
    mean = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
    std = torch.tensor([0.2023, 0.1994, 0.2010])[:, None, None]
    logits, eq = model.solve((images / 255 - mean) / std, solver=solver)
    accuracy = float((logits.argmax(dim=1) == labels).double().mean())
    return accuracy, float(F.cross_entropy(logits, labels)), float(eq.stats.num_evals.double().mean())


def test_the_command_measures_what_a_loop_by_hand_does(checkpoint, home, capfd):
    images, labels = write_cifar(home / "data" / "cifar-10-batches-bin", per_file=20)["test_batch"]
    succeed(capfd, "convert", checkpoint, "-o", "tiny")
    model = steadeq.load_model("tiny")
    anderson = ("--solver", "Anderson", "--solver.max-evals", 3, "--device", "cpu")
    broyden = ("--solver", "broyden", "--budgets", "2", "--batch-size", 7)
    for options, solver, budgets in ((anderson, Anderson, [1, 2, 3]), (broyden, Broyden, [2])):
        assert "tiny on cifar10, test split" in succeed(capfd, "evaluate", "tiny", *SMALL, *options)
        rows = rows_of("tiny")
        assert [row["max_evals"] for row in rows] == budgets
        for row in rows:
            accuracy, loss, evals = by_hand(model, images, labels, solver(max_evals=row["max_evals"]))
            assert row["accuracy"] == pytest.approx(accuracy, abs=1e-9)
            assert row["loss"] == pytest.approx(loss, rel=1e-4)
            assert row["forward_evals"] == evals
        assert len(Path("tiny/evaluation.csv").read_text().splitlines()) == 1 + len(rows)
    # By default the solver of the model; and a value may be written with a sign of equality.
    output = succeed(capfd, "evaluate", "tiny", "--budgets", "1", "4", f"--data={SMALL[1]}", *SMALL[2:])
    assert [line.split()[0] for line in output.splitlines() if re.match(r"\s*\d+\s", line)] == ["1", "4"]


@torch.no_grad()
@pytest.mark.parametrize("kind", [DEQTransformerLM, EquilibriumTransformer, StackedTransformer])
def test_a_text_is_read_in_16_streams_and_with_memory_if_the_model_has_one_as_the_official_test_does(kind, home, capfd):
    write_texts(home / "data" / "wikitext-2", *[WORDS] * 3)
    # Ten words, unknown words, and the ends of lines.
    sizes = {"vocab_size": 12, "features": 8, "num_heads": 2, "hidden_features": 8}
    has_memory = kind is DEQTransformerLM
    model = kind(**sizes, **({"memory_length": 6} if has_memory else {"kind": "language"})).eval()
    model.save_pretrained("lm")
    words, options = (), {}
    if kind is not StackedTransformer:
        words = ("--solver", "Anderson", "--solver.max-evals", 5, "--solver.tol", 0)
        options = {"solver": Anderson(max_evals=5, tol=0)}
    succeed(capfd, "evaluate", "lm", "--data", "wikitext-2", "--data.length", 6, "--budgets", 5, *words)
    (row,) = rows_of("lm")
    tokens = torch.tensor(WikiText2().vocabulary().encode([*WORDS.split(), "<eos>"]))
    streams = tokens[: len(tokens) // 16 * 16].reshape(16, -1)
    total, count, memory = 0.0, 0, {}
    for begin in range(0, streams.shape[1] - 1, 6):
        inputs, targets = streams[:, begin : begin + 6], streams[:, begin + 1 : begin + 7]
        predictions = model(inputs[:, : targets.shape[1]], **memory, **options)
        memory = {"carry": predictions.carry} if has_memory else {}
        total, count = total + float(predictions.losses(targets).sum()), count + targets.numel()
    assert row["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)


def test_data_that_does_not_fit_is_refused_in_a_sentence(checkpoint, home, capfd):
    write_cifar(home / "data" / "cifar-10-batches-bin", per_file=20)
    write_texts(home / "data" / "wikitext-2", *[WORDS] * 3)
    succeed(capfd, "convert", checkpoint, "-o", "tiny")
    MDEQClassifier(channels=(8, 8), expansion=2, final_channels=8, num_classes=7).save_pretrained("seven")
    MDEQClassifier(channels=(8, 8), expansion=2, final_channels=8, num_classes=12).save_pretrained("twelve")
    DEQTransformerLM(vocab_size=50, features=8, num_heads=2, hidden_features=8).save_pretrained("lm")
    blocks = {"features": 8, "num_heads": 2, "hidden_features": 8}
    EquilibriumTransformer(kind="language", vocab_size=50, **blocks).save_pretrained("modern")
    EquilibriumTransformer(kind="grid", vocab_size=12, **blocks).save_pretrained("grid")
    refusals = {
        ("modern", *SMALL): "it is not text, but the model is a language model",
        ("modern", "--data", "wikitext-2"): "it has 12 tokens, and the model has 50",
        ("grid", "--data", "wikitext-2"): "it is text, but the model is not a language model",
        ("tiny", "--data", "wikitext-2"): "it is text, but the model is not a language model",
        ("lm", *SMALL): "it is not text, but the model is a language model",
        ("lm", "--data", "wikitext-2"): "it has 12 tokens, and the model has 50",
        ("tiny", "--data", "digits"): "digits does not fit the model of tiny: ",
        ("seven", *SMALL): "it has 10 classes, but the model has 7",
        ("twelve", *SMALL): "it has 10 classes, but the model has 12",
        ("tiny",): "tiny holds a model without data; name a data set, as in --data",
        ("tiny", "--data", "cifr10"): "--data is 'cifr10'; it must be one of Addition, Cifar10,",
        ("tiny", *SMALL, "--budgets", "0"): "each must be from 1 to 100000",
        ("tiny", *SMALL, "--batch-size", "0"): "--batch-size is 0; it must be at least 1",
        ("tiny", *SMALL, "--step", "3"): "it has no checkpoint of step 3",
        ("nothing", *SMALL): "nothing is not the folder of a model",
    }
    for arguments, reason in refusals.items():
        assert reason in refuse(capfd, "evaluate", *arguments), arguments
    assert not Path("tiny/evaluation.json").exists()


def test_a_run_is_evaluated_on_its_own_data_with_a_solver_of_choice(run, capfd):
    line = refuse(capfd, "evaluate", "run", "--data", "digits")
    assert "leave out --data, as a run is evaluated on its own data" in line
    succeed(capfd, "evaluate", "run", "--solver", "Broyden", "--solver.max-evals", 2, "--batch-size", 100)
    assert [row["max_evals"] for row in rows_of("run")] == [1, 2]


# The page


def test_every_snippet_of_the_page_for_users_of_the_official_code_runs(checkpoint, home, capfd):
    page = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "", ""]
    write_cifar(home / "data" / "cifar-10-batches-bin", per_file=10)
    # The tokens of the language model of the parity test: 598 words, unknown words, and the ends of lines.
    text = " ".join(f"w{i}" for i in range(598)) + "\n"
    write_texts(home / "data" / "wikitext-103", *[5 * text] * 3)
    tensors = load_file(PARITY / "deq_transformer_post.safetensors")
    torch.save({key[6:]: w for key, w in tensors.items() if key.startswith("state/")}, "model_state_dict.pth")
    names = {"__name__": "page"}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, "coming-from.md", "exec"), names)
            # The commands after it make the same folder.
            if block is blocks[0][1]:
                shutil.rmtree("mdeq")
            continue
        for line in block.splitlines():
            words = line.removeprefix("steadeq ").split()
            # The data of the test is smaller than the published one.
            output = succeed(capfd, *words, *(SMALL[2:] if "cifar10" in words else ()))
            assert "Written to" in output
    assert names["model"].config.channels == (24, 24)
    assert [row["max_evals"] for row in rows_of("mdeq")] == list(range(1, 10))
    assert [row["max_evals"] for row in rows_of("deq-transformer")] == [12, 30]
