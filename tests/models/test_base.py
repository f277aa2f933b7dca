"""What all models have in common: configs, and the methods that follow from an encoder, a layer and a decoder."""

import dataclasses
import json
import math
import pickle
from dataclasses import dataclass

import pytest
import torch
from export.families import EQUILIBRIA, EXPLICIT
from torch import nn

from steadeq import (
    DEQ,
    Anderson,
    Equilibrium,
    OneStep,
    Picard,
    Status,
    models,
)
from steadeq.models import (
    AbstractEquilibriumModel,
    AbstractModelConfig,
    ConvDEQ,
    DenseNet,
    LoopedConv,
    MDEQClassifier,
    MonotoneDEQ,
    ResNet,
    ToyDEQ,
)
from steadeq.models.transformer import Predictions, generate
from steadeq.nn import AdaptiveEmbedding, AdaptiveSoftmax

TIGHT = Anderson(max_evals=200, tol=1e-12)


# A model from outside


class TanhCell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.normal_(self.linear.weight, std=0.3 / width**0.5)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


class Outsider(AbstractEquilibriumModel):
    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        widths: tuple[int, ...] = (3, 5)
        num_classes: int = 2

    def __init__(self, config=None, *, solver=TIGHT, **fields):
        super().__init__()
        self.config = Outsider.Config.resolve(config, fields)
        inner, outer = self.config.widths
        self.encoder, self.layer = nn.Linear(inner, outer), DEQ(TanhCell(outer), solver=solver)
        self.decoder = nn.Linear(outer, self.config.num_classes)

    def encode(self, x):
        x = self.encoder(x)
        return torch.zeros_like(x), (x,)

    def decode(self, z):
        return self.decoder(z)


def outsider(**options):
    return Outsider(**options).double(), torch.randn(4, 3, dtype=torch.float64)


def test_a_model_from_outside_solves_and_unrolls():
    model, x = outsider()
    output, eq = model.solve(x)
    assert isinstance(eq, Equilibrium)
    assert eq.stats.converged.all()
    assert eq.f is model.layer.cell
    torch.testing.assert_close(model.layer.cell(eq.z, model.encoder(x)), eq.z)
    torch.testing.assert_close(output, model.decoder(eq.z), rtol=0, atol=0)
    torch.testing.assert_close(model(x), output, rtol=0, atol=0)
    unrolled, _ = model.unroll(x, 60)
    torch.testing.assert_close(unrolled, output)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(y.square().sum(), parameters) for y in (output, unrolled)]
    assert eq.backward.converged.all()
    torch.testing.assert_close(*gradients)
    assert all(gradient.any() for gradient in gradients[0])


def test_a_model_from_outside_is_built_from_its_config():
    config = Outsider.Config(widths=(3, 4))
    assert config.build().config == config
    assert Outsider(config, num_classes=7).config == Outsider.Config(widths=(3, 4), num_classes=7)
    assert not Outsider.takes_carry


class LastToken(nn.Module):
    """Predicts from the last token alone, and carries how many it has read."""

    takes_carry = True

    def __init__(self, num_tokens):
        super().__init__()
        self.softmax = AdaptiveSoftmax(AdaptiveEmbedding(num_tokens, 4, std=1.0))

    def forward(self, tokens, carry=None):
        read = tokens.shape[1] + (0 if carry is None else int(carry[0]))
        self.seen = read
        return Predictions(
            hidden=self.softmax.embedding(tokens), softmax=self.softmax, carry=(torch.tensor([[float(read)]]),)
        )


def test_any_model_that_takes_a_carry_generates():
    model = LastToken(6)
    steps = list(generate(model, torch.tensor([1, 2, 3]), num_tokens=5, temperature=0))
    assert len(steps) == 5
    assert all(0 <= step.token < 6 and step.num_evals is None for step in steps)
    # The last one is drawn and not read.
    assert model.seen == 3 + 4


# The small networks


@torch.no_grad()
def test_the_toy_model_has_the_formula_and_the_200_parameters_of_the_paper():
    assert sum(p.numel() for p in ToyDEQ().parameters()) == 200
    model = models.create("toy", hidden=7).double()
    cell, z, x = model.layer.cell, *torch.randn(2, 5, 1).double()
    expected = torch.relu(cell.W1[:, 0] * z + cell.U[:, 0] * x + cell.b) @ cell.W2
    torch.testing.assert_close(cell(z, x), expected)
    assert torch.equal(model.decode(z), z)


def test_the_conv_cell_is_its_formula():
    cell = ConvDEQ(channels=8, hidden=8).layer.cell
    z, x = torch.randn(2, 2, 8, 8, 8)
    h = torch.relu(cell.norm1(cell.conv1(z)))
    torch.testing.assert_close(cell(z, x), cell.norm3(torch.relu(x + cell.norm2(cell.conv2(h)))))


# Solves


def test_a_solve_takes_a_start_a_solver_and_an_adjoint_for_one_call():
    solver = Picard(max_evals=2, tol=0.0)
    assert models.create("toy", solver=solver).solve(torch.ones(3, 1))[1].stats.num_evals.tolist() == [2] * 3
    model, x = outsider(solver=Picard(max_evals=3, tol=0.0))
    assert model.solve(x)[1].stats.num_evals.tolist() == [3] * 4
    _, eq = model.solve(x, solver=TIGHT)
    assert eq.stats.converged.all()
    _, again = model.solve(x, z0=eq.z.detach(), solver=Anderson(tol=1e-6))
    assert again.stats.num_evals.tolist() == [1] * 4
    torch.testing.assert_close(model(x, z0=eq.z.detach()), model.decode(eq.z))
    output, eq = model.solve(x, adjoint=OneStep())
    output.sum().backward()
    assert (eq.backward.status == Status.NOT_MEASURED).all()


@pytest.mark.parametrize(("name", "depth"), [("toy", 1), ("toy", 7), ("conv/digits", 2), ("mdeq/cifar10-cpu", 3)])
def test_unrolling_is_the_cell_applied_again_and_again(name, depth):
    shape = {"toy": (1,), "conv/digits": (1, 8, 8), "mdeq/cifar10-cpu": (3, 8, 8)}[name]
    model = models.create(name).eval()
    x = torch.randn(3, *shape)
    output, eq = model.unroll(x, depth)
    z, inputs = model.encode(x)
    for _ in range(depth):
        previous, z = z, model.layer.cell(z, *inputs)

    def flat(state):
        return torch.cat([part.flatten(1) for part in (state if isinstance(state, tuple) else (state,))], dim=1)

    assert torch.equal(flat(eq.z), flat(z))
    assert torch.equal(output, model.decode(z))
    moved = (flat(z) - flat(previous)).norm(dim=1) / flat(z).norm(dim=1)
    torch.testing.assert_close(eq.stats.residual, moved)
    assert not eq.stats.residual.requires_grad
    assert eq.stats.num_evals.tolist() == [depth] * 3
    assert eq.stats.status.tolist() == [Status.NOT_MEASURED] * 3
    assert eq.stats.trace.shape == (0, 3)
    assert eq.backward is None


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_that_makes_no_sense_is_refused(depth):
    model, x = outsider()
    with pytest.raises(ValueError, match=f"^depth is {depth}"):
        model.unroll(x, depth)


# Configs

NAMES = models.available()


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_a_config_that_can_be_written_to_a_file_and_builds_what_its_name_creates(name):
    config = models.preset(name)
    assert isinstance(config, AbstractModelConfig)
    assert type(config)(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert pickle.loads(pickle.dumps(config)) == config
    with torch.device("meta"):
        built, created = config.build(), models.create(name)
    assert type(built) is type(created)
    assert built.config == created.config == config
    assert list(built.state_dict()) == list(created.state_dict())


def test_a_config_and_its_fields_build_the_same_model():
    twins = []
    for build in (
        lambda: ConvDEQ(channels=8, hidden=16),
        lambda: ConvDEQ(ConvDEQ.Config(channels=8, hidden=16)),
        lambda: ConvDEQ(ConvDEQ.Config(channels=4, hidden=16), channels=8),
        lambda: ConvDEQ.Config(channels=8, hidden=16).build(),
    ):
        torch.manual_seed(0)
        twins.append(build())
    for twin in twins[1:]:
        assert twin.config == twins[0].config
        assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), twins[0].parameters(), strict=True))


def test_lists_are_taken_as_tuples():
    assert ResNet.Config(blocks=[1, 1], widths=[4, 8]) == ResNet.Config(blocks=(1, 1), widths=(4, 8))
    assert hash(MDEQClassifier.Config(channels=[8, 16])) == hash(MDEQClassifier.Config(channels=(8, 16)))


def test_names_are_sorted_and_unknown_names_fields_and_configs_refused_with_the_nearest():
    assert list(NAMES) == sorted(NAMES)
    for make in (models.create, models.preset):
        with pytest.raises(ValueError, match=r"no model 'conv/digit'.*'conv/digits'"):
            make("conv/digit")
        with pytest.raises(ValueError, match=r"models\.available"):
            make("qqqq")
    with pytest.raises(TypeError, match="Did you mean 'hidden'"):
        models.create("toy", hiden=3)
    with pytest.raises(TypeError, match=r"^chanels is not a field of MDEQClassifier\.Config.*Did you mean 'channels'"):
        MDEQClassifier(chanels=(8, 16))
    with pytest.raises(TypeError, match=r"it must be a ResNet\.Config"):
        ResNet(Outsider.Config())


# Without those of the same class and kind.
FAMILIES = [name for name in EQUILIBRIA | EXPLICIT if name not in ("sequential", "fused attention", "bottlenecks")]
MAY_BE_ZERO = {"dropout", "attention_dropout", "memory_length", "num_downsamplings", "num_outer_blocks", "start_noise"}
NONSENSE = {int: (-1, 0, 1.5), float: (-1.0, 0.0, math.nan), str: ("nonsense",)}


@pytest.mark.parametrize("name", FAMILIES)
def test_no_field_takes_what_makes_no_sense_for_it(name):
    with torch.device("meta"):
        config = (EQUILIBRIA | EXPLICIT)[name]()[0].config
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        entries = value if isinstance(value, tuple) else (value,)
        kind = float if "float" in str(field.type) else type(entries[-1] if entries else None)
        for bad in NONSENSE.get(kind, ()) if None not in entries else ():
            # Of pictures and grids there are no clusters, whose widths it says.
            if (bad == 0 and field.name in MAY_BE_ZERO) or (field.name == "div_value" and not config.cutoffs):
                continue
            changed = (*entries[:-1], bad) if isinstance(value, tuple) else bad
            with pytest.raises((ValueError, TypeError), match=f"^{field.name} is "):
                dataclasses.replace(config, **{field.name: changed})


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (ConvDEQ, {"channels": 10}, "^channels is 10"),
        (ConvDEQ, {"hidden": 7}, "^hidden is 7"),
        (ResNet, {"blocks": (1, 1)}, "one entry for each stage"),
        (ResNet, {"groups": 0}, "^groups is 0"),
        (ResNet, {"groups": 3}, "must divide all of widths"),
        (DenseNet, {"blocks": ()}, "^blocks is "),
        (MonotoneDEQ, {"alpha": -1.0}, "^alpha is -1.0"),
        (MonotoneDEQ, {"image_size": 3}, "^image_size is 3"),
        (MonotoneDEQ, {"image_size": 6, "tiers": (3, 3)}, "^image_size is 6; 3 tiers need a multiple of 4"),
        (MonotoneDEQ, {"kind": "dense", "tiers": (3,)}, r"^tiers is \(3,\); a dense state has no tiers"),
        (LoopedConv, {"num_states": 2, "recall": "none"}, "recall"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused_by_name(model, fields, message):
    with pytest.raises(ValueError, match=message):
        model.Config(**fields)
