"""`steadeq diagnose`: the numbers of `steadeq.diagnose` for each kind of network, in words, in a file, in a report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab.cli.commands import refuse, succeed
from lab.cli.test_generate import SIZES, write_corpus
from lab.train.runs import snapshot, train
from torch import nn

import steadeq
from steadeq import (
    Anderson,
    Diagnosis,
    JacobianRegularizer,
    OneStep,
    Picard,
    Reversible,
    Unrolled,
    diagnose,
    fixed_point,
)
from steadeq._internal.trees import leaves
from steadeq.lab.cli import diagnose as command
from steadeq.lab.cli.main import main
from steadeq.lab.config import LogConfig, LoopConfig, RandomBudget, TrainConfig, WarmupConfig
from steadeq.lab.data import Digits, Shapes, WikiText2
from steadeq.lab.optimizers import Adam
from steadeq.lab.report import render_report, save_png
from steadeq.lab.run.record import RunRecord
from steadeq.models import (
    AbstractModelConfig,
    ConvDEQ,
    DEQTransformerLM,
    EquilibriumTransformer,
    MDEQClassifier,
    MDEQSegmenter,
    StackedTransformer,
)
from steadeq.solvers import LogNormalDepth

BLOCK = {"features": 8, "num_heads": 2, "hidden_features": 12}
PATCHES = {"kind": "image", "image_channels": 1, "patch_size": 4, **BLOCK}
MODELS = {
    "conv": (ConvDEQ.Config(channels=8), Digits()),
    "multiscale": (
        MDEQClassifier.Config(image_channels=1, channels=(8, 8), expansion=2, groups=4, final_channels=8),
        Digits(),
    ),
    "segmenter": (
        MDEQSegmenter.Config(channels=(8, 8), num_downsamplings=1, num_classes=4, expansion=2, groups=4),
        Shapes(num_train=8, num_validation=6, num_test=4, size=16),
    ),
    "patches": (EquilibriumTransformer.Config(**PATCHES), Digits()),
    "fused": (EquilibriumTransformer.Config(**PATCHES, attention="fused"), Digits()),
    "memory": (DEQTransformerLM.Config(**SIZES), WikiText2(length=8)),
    "text": (EquilibriumTransformer.Config(kind="language", vocab_size=11, **BLOCK), WikiText2(length=8)),
}
OPTIONS = ("--num-samples", "4", "--max-evals", "40", "--max-products", "8")


def make_config(model, data, **sections):
    config = TrainConfig(
        recipe="digits",
        model=model,
        data=data,
        optimizer=Adam(learning_rate=1e-2),
        solver=Anderson(max_evals=6, tol=1e-3),
        adjoint=OneStep(),
        loop=LoopConfig(num_steps=4, batch_size=4),
        log=LogConfig(eval_every=4, checkpoint_every=2, eval_batch_size=3, spectrum_samples=0),
    )
    return replace(config, **sections)


@pytest.fixture(autouse=True)
def quick_figures(monkeypatch):
    """Have figures made, but not drawn, which would be most of the time."""
    monkeypatch.setattr(command, "save_png", lambda figure, path: path.touch())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosed")
    write_corpus(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("STEADEQ_DATA", str(folder / "data"))
        yield folder


def run_of(folder, kind) -> Path:
    """Return the folder of a run of a few steps."""
    if not (folder / kind).exists():
        # The one penalty that needs no second derivatives, of which fused attention has none.
        sections = {"regularizer": JacobianRegularizer(weight=0.1, estimator="difference")} if kind == "fused" else {}
        train(make_config(*MODELS[kind], **sections), folder / kind)
    return folder / kind


def read(path) -> dict:
    return json.loads((path / "diagnosis.json").read_text(), parse_constant=pytest.fail)


@torch.no_grad()
def prepare(path, kind):
    """Return model, targets, start and inputs of the samples, without any of what the command does it with."""
    model, data = steadeq.load_model(path), MODELS[kind][1]
    dataset = data.load_split("validation")
    first = 1 if isinstance(data, WikiText2) else 0
    places = [first + round(i * (len(dataset) - 1 - first) / 3) for i in range(4)]
    x, y = (torch.stack(parts) for parts in zip(*(dataset[place] for place in places), strict=True))
    if kind != "memory":
        return model, y, *model.encode(x)
    before = torch.stack([dataset[place - 1][0] for place in places])
    return model, y, *model.encode(x, model(before).carry)


def score(kind, output, y):
    if kind in ("memory", "text"):
        return output.losses(y).mean().exp()
    if kind == "segmenter":
        found = output.argmax(dim=1)
        both = [((found == k) & (y == k)).sum() for k in range(4)]
        either = [((found == k) | (y == k)).sum() for k in range(4)]
        return sum(a / b for a, b in zip(both, either, strict=True) if b) / sum(1 for b in either if b)
    return (output.argmax(dim=1) == y).double()


@pytest.mark.parametrize("kind", MODELS)
def test_the_numbers_are_those_of_a_call_and_of_a_loop_by_hand(kind, folder, capfd):
    path = run_of(folder, kind)
    output = succeed(capfd, "diagnose", path, *OPTIONS)
    content = read(path)
    model, y, z, inputs = prepare(path, kind)
    is_text = kind in ("memory", "text")
    name = "perplexity" if is_text else "mIoU" if kind == "segmenter" else "accuracy"
    found = diagnose(
        model.layer.cell,
        z,
        *inputs,
        max_evals=40,
        training_depth=6,
        metric=lambda z: score(kind, model.decode(z), y),
        metric_name=name,
        higher_is_better=not is_text,
        max_products=8,
        generator=torch.Generator().manual_seed(0),
    )
    expected, metric = found.to_dict(), content["iteration"].pop("metric")
    torch.testing.assert_close(torch.tensor(metric), torch.tensor(expected.pop("metric")), check_dtype=False)
    assert content["iteration"] == json.loads(json.dumps(expected))
    assert content["num_samples"] == 4
    with torch.no_grad():
        for residual in content["iteration"]["residual"]:
            image = model.layer.cell(z, *inputs)
            pairs = list(zip(leaves(image), leaves(z), strict=True))
            step = sum((a - b).flatten(1).square().sum(dim=1) for a, b in pairs).sqrt()
            size = sum(a.flatten(1).square().sum(dim=1) for a, _ in pairs).sqrt()
            assert residual == pytest.approx((step / size).tolist(), rel=1e-4, abs=1e-6)
            z = image
    assert output.startswith(f"{found}\n\n")
    assert name in found.summary["helps"]
    assert RunRecord.read(path).diagnosis.found.to_dict() == {**content["iteration"], "metric": metric}
    if kind == "fused":
        # What needs second derivatives is missing, alone.
        assert content["operator_norm"] == [None] * 4
        assert all(value > 0 for value in (*content["spectral_radius"], *content["iteration"]["radius"]["value"]))
    assert (path / "diagnosis" / f"residual-and-{name.lower()}-of-plain-iteration.png").exists()


def test_steps_and_splits_are_chosen(folder, capfd):
    path = run_of(folder, "conv")
    succeed(capfd, "diagnose", path, *OPTIONS)
    last = read(path)
    assert (last["step"], last["split"]) == (4, "validation")
    succeed(capfd, "diagnose", path, *OPTIONS, "--step", "2", "--split", "test")
    early = read(path)
    assert (early["step"], early["split"]) == (2, "test")
    assert early["iteration"]["residual"] != last["iteration"]["residual"]


def test_nothing_else_of_the_run_changes_and_a_second_time_gives_the_same(folder, capfd):
    path = run_of(folder, "patches")
    succeed(capfd, "diagnose", path, *OPTIONS)
    before = snapshot(path)
    torch.manual_seed(5)
    succeed(capfd, "diagnose", path, *OPTIONS)
    assert snapshot(path) == before


@pytest.mark.parametrize(
    ("sections", "depth"),
    [
        ({"budget": RandomBudget(depth=LogNormalDepth(mean=20, sigma=0.1))}, 20),
        ({"warmup": WarmupConfig(num_steps=10, depth=3)}, 3),
        ({"loop": LoopConfig(num_steps=4, batch_size=4, num_answers=3)}, 18),
        # The last evaluation of a loop tells its residual, and is no step.
        ({"solver": Picard(max_evals=9, tol=0), "adjoint": Unrolled(last=2)}, 8),
        ({"solver": Picard(max_evals=9, tol=0, damping=0.5), "adjoint": Reversible()}, 8),
    ],
)
def test_the_training_depth_is_that_of_the_run(sections, depth, folder, tmp_path, capfd):
    train(make_config(*MODELS["patches"], **sections), tmp_path / "run")
    succeed(capfd, "diagnose", tmp_path / "run", "--num-samples", "2", "--max-products", "2", "--max-evals", "64")
    depth_of_run = read(tmp_path / "run")["iteration"]["training_depth"]
    assert depth_of_run == pytest.approx(depth, abs=1 if "budget" in sections else 0)


def test_half_precision_is_diagnosed_in_half_precision(folder, tmp_path, capfd):
    half = make_config(*MODELS["patches"], loop=LoopConfig(num_steps=4, batch_size=4, precision="bfloat16"))
    train(half, tmp_path / "half")
    floors = []
    for path in (run_of(folder, "patches"), tmp_path / "half"):
        succeed(capfd, "diagnose", path, *OPTIONS)
        floors.append(max(read(path)["iteration"]["residual"][-1]))
    assert floors[0] < 1e-5
    assert floors[1] < 0.05
    assert floors[1] == 0 or floors[1] > 1e-5


class SolveOnly(nn.Module):
    """Somebody's own network, which has `solve` and nothing else that could be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def solve(self, x, *, solver=None, adjoint=None):
        options = {name: value for name, value in (("solver", solver), ("adjoint", adjoint)) if value is not None}
        x = self.linear(x.flatten(1))
        eq = fixed_point(_halve, torch.ones_like(x), x, **options)
        return eq.z, eq


def _halve(z, x):
    return 0.5 * z + x


class OwnConfig(AbstractModelConfig):
    """The sizes of one without sizes."""

    def build(self):
        return SolveOnly()


def test_a_network_that_only_solves_starts_at_zero_and_has_no_metric(folder, tmp_path, capfd, monkeypatch):
    (tmp_path / "own.py").write_text(
        "from lab.cli.test_diagnose import MODELS, OwnConfig, make_config\n"
        "def recipe():\n    return make_config(OwnConfig(), MODELS['conv'][1])\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "own.py:recipe", "--out", "run"]) == 0
    output = succeed(capfd, "diagnose", "run", *OPTIONS, "--recipe", "own.py:recipe")
    content = read(tmp_path / "run")["iteration"]
    assert content["metric"] is None
    assert "helps:" not in output
    # From zero, z = 2x (1 - 0.5^n).
    assert content["residual"][:3] == [pytest.approx([0.5**n / (2 - 0.5**n)] * 4, rel=1e-5) for n in range(3)]
    assert content["rate"] == pytest.approx([0.5] * 4, rel=1e-2)


# What a run does, as its report says


def test_the_report_has_a_section_if_there_is_a_diagnosis(folder, capfd, monkeypatch):
    path = run_of(folder, "conv")
    monkeypatch.setattr(command, "save_png", save_png)
    (path / "diagnosis.json").unlink(missing_ok=True)
    without = render_report([RunRecord.read(path)])
    assert "does it help?" not in without
    assert "Equilibria of" not in without
    succeed(capfd, "diagnose", path, "--num-samples", "4", "--max-products", "8")
    run = RunRecord.read(path)
    page = render_report([run])
    found = run.diagnosis.found
    assert len(found.to_dict()["residual"]) == 256
    assert "Does iterating conv settle, and does it help?</h2>" in page
    assert all(text.replace('"', "&#34;") in page for text in found.summary.values())
    assert "Residual and accuracy of plain iteration" in page
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in (path / "diagnosis").iterdir())


# Refusals


def test_an_explicit_network_is_refused(folder, tmp_path, capfd):
    model = StackedTransformer.Config(**PATCHES, depth=2)
    train(make_config(model, Digits()), tmp_path / "run")
    before = snapshot(tmp_path)
    assert "is a run of an explicit network" in refuse(capfd, "diagnose", tmp_path / "run")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--num-samples 0", "--num-samples is 0; it must be at least 1."),
        ("--max-evals 15", "--max-evals is 15; it must be at least 16."),
        ("--max-products 1", "--max-products is 1; it must be at least 2."),
        ("--tol 1", "--tol is 1.0; it must be in [0, 1)."),
        ("--step 3", "3"),
        ("--split train", "train"),
        ("--num-sample 3", "--num-samples"),
        ("--time-dim 7", "time_dim is 7"),
        ("--bits 1", "bits"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, problem, folder, capfd):
    assert problem in refuse(capfd, "diagnose", run_of(folder, "conv"), *arguments.split())


def test_fewer_evaluations_than_in_training_are_refused(folder, tmp_path, capfd):
    config = make_config(*MODELS["conv"], solver=Anderson(max_evals=30, tol=1e-3))
    train(config, tmp_path / "run")
    line = refuse(capfd, "diagnose", tmp_path / "run", "--max-evals", "20")
    assert "--max-evals is 20; it must be at least the 30 evaluations of training" in line


# A model in a file

OWN = """
import torch
from torch import nn
from steadeq.diagnosis import Subject

def loop():
    torch.manual_seed(0)
    block, x = nn.Linear(4, 4), torch.randn(6, 4)
    return Subject(
        f=lambda z, x: torch.tanh(block(z) + x), z0=torch.zeros_like(x), inputs=(x,), training_depth=4,
        metric=lambda z: z[:, 0] > 0, metric_name="sign",
    )

def nothing():
    return None
"""


def test_a_model_in_a_file_is_diagnosed(tmp_path, capfd, monkeypatch):
    (tmp_path / "looped.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    output = succeed(capfd, "diagnose", "looped.py:loop", "--max-evals", "64", "--bits", "8", "4")
    assert output.startswith("settles:    yes, all 6 samples")
    assert "bits:       sign at 4, 64: 8 bits" in output
    assert "6 settle:" in succeed(capfd, "diagnose", "looped.py:loop", "--max-evals", "64", "--details")
    assert main(["diagnose", "looped.py:loop", "--max-evals", "64", "--json"]) == 0
    content = json.loads(capfd.readouterr().out)
    assert Diagnosis.from_dict(content).settles
    assert [path.name for path in tmp_path.iterdir() if path.suffix != "" and "cache" not in path.name] == ["looped.py"]
    assert "must return a Subject" in refuse(capfd, "diagnose", "looped.py:nothing")
    assert "has no function 'lop'" in refuse(capfd, "diagnose", "looped.py:lop")
    assert "--step is for runs" in refuse(capfd, "diagnose", "looped.py:loop", "--step", "3")


def test_rounded_weights_of_a_run_are_scored(folder, capfd):
    path = run_of(folder, "conv")
    assert "accuracy at 6, 40: 8 bits" in succeed(capfd, "diagnose", path, *OPTIONS, "--bits", "8", "4")
    assert [count for count, _ in read(path)["iteration"]["bits"]] == [8, 4]


@pytest.mark.parametrize("kind", ["memory", "text"])
def test_cells_of_language_models_are_causal(kind, folder, capfd):
    path = run_of(folder, kind)
    assert "causality: yes" in succeed(capfd, "diagnose", path, *OPTIONS, "--time-dim", "1")
    assert read(path)["iteration"]["leak"] == [0.0] * 4
