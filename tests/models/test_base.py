"""What all models have in common: configs, and the methods that follow from an encoder, a layer and a decoder."""

import copy
import dataclasses
import json
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from steadeq import (
    DEQ,
    Anderson,
    Equilibrium,
    JacobianRegularizer,
    OneStep,
    Picard,
    Status,
    jacobian_penalty,
    models,
    spectral_radius,
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


def test_a_model_from_outside_takes_penalties_and_spectra():
    model, x = outsider()
    for _, eq in (model.solve(x), model.unroll(x, 5)):
        model.zero_grad()
        (jacobian_penalty(eq) + JacobianRegularizer(weight=2.0)(eq, step=0)).backward()
        assert model.layer.cell.linear.weight.grad.any()
        assert (spectral_radius(eq).value < 1).all()


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


def test_configs_cannot_be_changed_and_copies_of_models_keep_them():
    model = ToyDEQ(hidden=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.config.hidden = 5
    assert copy.deepcopy(model).config == pickle.loads(pickle.dumps(model)).config == model.config


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


REFUSED = [
    (ToyDEQ, {"hidden": 0}, "^hidden is "),
    (ConvDEQ, {"stride": 0}, "^stride is "),
    (ConvDEQ, {"groups": -4}, "^groups is "),
    (ConvDEQ, {"channels": 10}, "^channels is 10"),
    (ConvDEQ, {"hidden": 7}, "^hidden is 7"),
    (ResNet, {"widths": (64, 0)}, "^widths is "),
    (ResNet, {"num_classes": 0}, "^num_classes is "),
    (ResNet, {"stem": "mnist"}, "^stem is 'mnist'"),
    (ResNet, {"block": "wide"}, "^block is 'wide'"),
    (ResNet, {"blocks": (1, 1)}, "one entry for each stage"),
    (ResNet, {"groups": 0}, "^groups is 0"),
    (ResNet, {"groups": 3}, "must divide all of widths"),
    (DenseNet, {"blocks": ()}, "^blocks is "),
    (DenseNet, {"growth": 0}, "^growth is "),
    (DenseNet, {"compression": 0.0}, "^compression is "),
    (DenseNet, {"stem": "mnist"}, "^stem is "),
    (MonotoneDEQ, {"channels": 0}, "^channels is "),
    (MonotoneDEQ, {"m": 0.0}, "^m is 0.0"),
    (MonotoneDEQ, {"alpha": -1.0}, "^alpha is -1.0"),
    (MonotoneDEQ, {"splitting": "douglas"}, "^splitting is 'douglas'"),
    (MonotoneDEQ, {"kind": "sparse"}, "^kind is 'sparse'"),
    (MonotoneDEQ, {"image_size": 3}, "^image_size is 3"),
    (MonotoneDEQ, {"image_size": 6, "tiers": (3, 3)}, "^image_size is 6; 3 tiers need a multiple of 4"),
    (MonotoneDEQ, {"tiers": (3, 0)}, "^tiers is 0"),
    (MonotoneDEQ, {"kind": "dense", "tiers": (3,)}, r"^tiers is \(3,\); a dense state has no tiers"),
    (LoopedConv, {"channels": 0}, "channels"),
    (LoopedConv, {"dims": 3}, "dims"),
    (LoopedConv, {"num_states": 0}, "num_states"),
    (LoopedConv, {"recall": "all"}, "recall"),
    (LoopedConv, {"start_noise": -1.0}, "start_noise"),
    (LoopedConv, {"num_outer_blocks": -1}, "num_outer_blocks"),
    (LoopedConv, {"num_states": 2, "recall": "none"}, "recall"),
]


@pytest.mark.parametrize(("model", "fields", "message"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused_by_the_name_of_its_field(model, fields, message):
    with pytest.raises(ValueError, match=message):
        model.Config(**fields)


def test_a_size_that_is_no_integer_is_refused():
    with pytest.raises(TypeError, match=r"^channels is 8\.0"):
        ConvDEQ.Config(channels=8.0)
