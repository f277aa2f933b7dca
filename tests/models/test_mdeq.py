import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steadeq import Anderson, Implicit, OneStep, models
from steadeq.models import MDEQ, MDEQCell, MDEQClassifier, MDEQSegmenter
from steadeq.nn import WeightNormConv2d, cached_parameters

# Those of the official code's networks; "paper" and "large-jr" have no such network.
COUNTS = {
    "mdeq/cifar10": 11_097_438,
    "mdeq/cifar10-jr": 11_097_438,
    "mdeq/cifar10-paper": 9_029_926,
    "mdeq/cifar10-tiny": 158_890,
    "mdeq/imagenet-small": 16_808_936,
    "mdeq/imagenet-small-jr": 18_613_496,
    "mdeq/imagenet-large": 67_063_624,
    "mdeq/imagenet-large-jr": 67_061_224,
    "mdeq/imagenet-xl": 90_463_280,
}
CLASSIFIERS = [n for n in models.available() if n.startswith("mdeq/") and "cityscapes" not in n]
SEGMENTERS = [n for n in models.available() if n.startswith("mdeq/cityscapes")]


def backbone(**options):
    torch.manual_seed(0)
    return MDEQ(**{"channels": (8, 16), "groups": 4, "expansion": 2, **options})


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_the_official_ones_and_the_cell_has_its_published_share():
    with torch.device("meta"):
        built = {name: models.create(name) for name in COUNTS}
    assert {name: count(model) for name, model in built.items()} == COUNTS
    cells = [count(built[f"mdeq/{name}"].layer.cell) for name in ("cifar10", "cifar10-tiny")]
    assert [round(number / 1e6, 2) for number in cells] == [8.72, 0.11]


def test_only_convolutions_are_initialized_as_the_paper_says():
    model = models.create("mdeq/cifar10")
    # torch's default for linear maps: uniform within 1/√1680.
    assert model.head.classifier.weight.std().item() == pytest.approx(0.0141, rel=0.05)
    assert model.head.final[0].weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert model.head.final[0].bias.std().item() == pytest.approx(0.01, rel=0.1)


def test_the_segmenter_has_the_momenta_and_the_corners_of_the_official_one():
    model = MDEQSegmenter(channels=(8, 16), groups=4, expansion=2, num_downsamplings=2)
    assert {part.momentum for part in model.modules() if isinstance(part, nn.BatchNorm2d)} == {0.01}
    model.eval()
    coarse = [torch.randn(1, 8, 8, 8), torch.randn(1, 16, 4, 4)]
    # With aligned corners, the corner pixels are those of the map before it is enlarged.
    assert torch.allclose(model.decode(coarse)[..., ::31, ::31], model.head(coarse)[..., ::7, ::7], atol=1e-6)


def test_the_widths_of_the_paper_cannot_be_built_with_its_groups():
    with pytest.raises(ValueError, match=r"28.*multiple of groups \(8\)"), torch.device("meta"):
        models.create("mdeq/cifar10-paper", groups=8)


def reduced(name):
    with torch.device("meta"):
        channels = models.create(name).config.channels
    narrow = tuple(8 * 2**scale for scale in range(len(channels)))
    options = {"channels": narrow, "groups": 4, "expansion": 2}
    if name in CLASSIFIERS:
        options |= {"head_channels": tuple(2 * 2**scale for scale in range(len(narrow))), "final_channels": 16}
    torch.manual_seed(0)
    return models.create(name, **options)


@pytest.mark.parametrize("name", CLASSIFIERS + SEGMENTERS)
def test_every_preset_has_its_shapes_and_gradients_at_reduced_width(name):
    model = reduced(name)
    size = 32 << model.config.num_downsamplings
    x = torch.randn(2, 3, size, size)
    output, eq = model.solve(x, solver=Anderson(max_evals=3), adjoint=OneStep())
    classes = 19 if name in SEGMENTERS else 1000 if "imagenet" in name else 10
    assert output.shape == ((2, classes, size, size) if name in SEGMENTERS else (2, classes))
    assert eq.stats.num_evals.tolist() == [3, 3]
    output.square().sum().backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing


def test_a_size_that_cannot_be_halved_is_refused():
    with pytest.raises(ValueError, match="multiples of 2"):
        backbone().encode(torch.zeros(1, 3, 7, 8))


def test_the_cell_is_the_published_formula():
    torch.manual_seed(0)
    cell = MDEQCell(channels=(8, 16), expansion=2, groups=4).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter, std=0.3)
    z = (torch.randn(2, 8, 8, 8).double(), torch.randn(2, 16, 4, 4).double())
    x, masks = torch.randn(2, 8, 8, 8).double(), [torch.rand(2, c, 1, 1).double() for c in (8, 16)]
    p = dict(cell.named_parameters())

    def weight(name):
        v, g = p[f"{name}.v"], p[f"{name}.g"]
        return g * v / v.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)

    def norm(h, name, groups=4):
        return F.group_norm(h, groups, p.get(f"{name}.weight"), p.get(f"{name}.bias"))

    def block(scale, injected):
        h = F.relu(norm(F.conv2d(z[scale], weight(f"blocks.{scale}.conv1"), padding=1), f"blocks.{scale}.norm1"))
        h = F.conv2d(h, weight(f"blocks.{scale}.conv2"), padding=1) * masks[scale] + injected
        return norm(F.relu(norm(h, f"blocks.{scale}.norm2") + z[scale]), f"blocks.{scale}.norm3")

    fine, coarse = block(0, x), block(1, 0)
    up = norm(F.conv2d(coarse, p["fusions.0.1.0.weight"]), "fusions.0.1.1")
    down = norm(F.conv2d(fine, p["fusions.1.0.0.weight"], stride=2, padding=1), "fusions.1.0.1")
    fine, coarse = fine + up.repeat_interleave(2, 2).repeat_interleave(2, 3), coarse + down
    expected = [
        norm(F.conv2d(F.relu(h), weight(f"posts.{scale}")), f"norms.{scale}", groups=2)
        for scale, h in enumerate((fine, coarse))
    ]
    for actual, wanted in zip(cell(z, x, *masks), expected, strict=True):
        torch.testing.assert_close(actual, wanted)


class TestWeightNorm:
    def test_it_is_cached_parameters_for_a_solve_and_gradients_reach_it(self, monkeypatch):
        model = backbone()
        calls = []
        plain = WeightNormConv2d.compute
        monkeypatch.setattr(WeightNormConv2d, "compute", lambda self: (calls.append(self), plain(self))[1])
        z = model.solve(torch.randn(2, 3, 16, 16), solver=Anderson(max_evals=8), adjoint=Implicit())[0]
        convs = [m for m in model.layer.cell.modules() if isinstance(m, WeightNormConv2d)]
        assert len(calls) == len(convs) == 6
        sum(part.square().sum() for part in z).backward()
        assert len(calls) == 6
        assert all(conv.v.grad is not None and conv.v.grad.abs().max() > 0 for conv in convs)

    def test_what_is_kept_is_gone_after_the_solve_also_after_an_error(self):
        conv = WeightNormConv2d(2, 2, 3)
        with pytest.raises(RuntimeError, match="stop"), cached_parameters(conv):
            raise RuntimeError("stop")
        assert conv.cached() is not conv.cached()


class TestDropout:
    def test_masks_are_the_same_for_all_evaluations_of_a_solve_and_fresh_for_the_next(self):
        model = backbone(dropout=0.5)
        seen = []
        model.layer.cell.register_forward_hook(lambda module, inputs, output: seen.append(inputs[2:]))
        x = torch.randn(4, 3, 16, 16)
        for _ in range(2):
            z = model(x, solver=Anderson(max_evals=4, tol=0), adjoint=Implicit())
            sum(part.sum() for part in z).backward()
        assert len(seen) == 10
        first, second = seen[:5], seen[5:]
        for masks in (*first, *second):
            assert [tuple(mask.shape) for mask in masks] == [(4, 8, 1, 1), (4, 16, 1, 1)]
        assert all(torch.equal(a, b) for masks in first for a, b in zip(masks, first[0], strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))

    def test_evaluation_has_none(self):
        model = backbone(dropout=0.5).eval()
        x = torch.randn(2, 3, 16, 16)
        assert torch.equal(model(x)[0], model(x)[0])


def test_a_head_is_as_wide_as_that_for_cifar_10_by_default():
    with torch.device("meta"):
        twins = [MDEQClassifier(), models.create("mdeq/cifar10", dropout=0.0)]
    assert [p.shape for p in twins[0].parameters()] == [p.shape for p in twins[1].parameters()]
    assert MDEQClassifier(channels=(8, 16))(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (MDEQ, {"channels": ()}, "channels is empty"),
        (MDEQ, {"channels": (8, 12)}, r"channels has 12.*groups \(8\)"),
        (MDEQ, {"channels": (15,), "groups": 5}, "channels has 15"),
        (MDEQ, {"dropout": 1.0}, "dropout is 1.0"),
        (MDEQClassifier, {"head_channels": (1, 2)}, "head_channels is .* 4 scales"),
        (MDEQSegmenter, {"kernel_size": 2}, "kernel_size is 2"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_by_name(model, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        model.Config(**options)


@pytest.mark.parametrize("model", [MDEQClassifier, MDEQSegmenter])
def test_the_backbone_has_the_part_of_the_config_that_is_its_own(model):
    built = model(channels=(8, 16), expansion=2, num_classes=3)
    assert built.backbone.config == MDEQ.Config(channels=(8, 16), expansion=2)
    assert built.layer is built.backbone.layer
