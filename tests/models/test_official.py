"""Checkpoints of the authors: every layout, what is inferred, and what is refused."""

import io
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from steadeq import Anderson, OneStep
from steadeq.models import (
    DEQTransformerLM,
    MDEQClassifier,
    MDEQSegmenter,
    MonotoneDEQ,
    ResNet,
    available,
    from_official,
    preset,
)
from steadeq.models.official import read_official

BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


# The official names, written down once more and by themselves: pairs of theirs and ours


def mdeq_names(config):
    """Yield the names of the part that all multiscale DEQs share."""
    scales, cell = range(len(config.channels)), "backbone.layer.cell"
    for stage in range(max(2, config.num_downsamplings)):
        conv, norm = (f"{3 * stage}", f"{3 * stage + 1}") if stage < 2 else (f"DS{stage + 1}", f"DS{stage + 1}-BN")
        yield f"downsample.{conv}.weight", f"backbone.stem.{stage}.0.weight"
        yield from ((f"downsample.{norm}.{name}", f"backbone.stem.{stage}.1.{name}") for name in BATCH_NORM)
    if config.num_downsamplings or len(config.channels) > 2:
        yield "stage0.0.weight", "backbone.injection.0.weight"
        yield from ((f"stage0.1.{name}", f"backbone.injection.1.{name}") for name in BATCH_NORM)
    kinds = (("weight_g", "g"), ("weight_v", "v")) if config.weight_norm else (("weight", "weight"),)
    for i in scales:
        block, post = f"fullstage.branches.{i}.blocks.0", f"fullstage.post_fuse_layers.{i}"
        for theirs, ours in kinds:
            yield f"{block}.conv1.{theirs}", f"{cell}.blocks.{i}.conv1.{ours}"
            yield f"{block}.conv2.{theirs}", f"{cell}.blocks.{i}.conv2.{ours}"
            yield f"{post}.conv.{theirs}", f"{cell}.posts.{i}.{ours}"
        for name in ("weight", "bias"):
            yield from ((f"{block}.gn{n}.{name}", f"{cell}.blocks.{i}.norm{n}.{name}") for n in (1, 2, 3))
            if config.post_affine:
                yield f"{post}.gnorm.{name}", f"{cell}.norms.{i}.{name}"
        for j in scales:
            steps = [f"{k}." for k in range(i - j)] if j < i else [""] if j > i else []
            for k, step in enumerate(steps):
                net, fusion = f"fullstage.fuse_layers.{i}.{j}.net.{step}", f"{cell}.fusions.{i}.{j}"
                yield f"{net}conv.weight", f"{fusion}.{3 * k}.weight"
                yield from ((f"{net}gnorm.{name}", f"{fusion}.{3 * k + 1}.{name}") for name in ("weight", "bias"))


def classifier_names(config):
    yield from mdeq_names(config)
    for i in range(len(config.channels)):
        theirs, ours = f"incre_modules.{i}.0", f"head.bottlenecks.{i}"
        for n in (1, 2, 3):
            yield f"{theirs}.conv{n}.weight", f"{ours}.body.{3 * n - 3}.weight"
            yield from ((f"{theirs}.bn{n}.{name}", f"{ours}.body.{3 * n - 2}.{name}") for name in BATCH_NORM[2:])
        yield f"{theirs}.downsample.0.weight", f"{ours}.skip.0.weight"
        yield from ((f"{theirs}.downsample.1.{name}", f"{ours}.skip.1.{name}") for name in BATCH_NORM)
    for i in range(len(config.channels) - 1):
        yield from ((f"downsamp_modules.{i}.0.{name}", f"head.downs.{i}.0.{name}") for name in ("weight", "bias"))
        yield from ((f"downsamp_modules.{i}.1.{name}", f"head.downs.{i}.1.{name}") for name in BATCH_NORM)
    yield from ((f"final_layer.0.{name}", f"head.final.0.{name}") for name in ("weight", "bias"))
    yield from ((f"final_layer.1.{name}", f"head.final.1.{name}") for name in BATCH_NORM)
    yield from ((f"classifier.{name}", f"head.classifier.{name}") for name in ("weight", "bias"))


def segmenter_names(config):
    yield from mdeq_names(config)
    yield from ((f"last_layer.0.{name}", f"head.mix.0.{name}") for name in ("weight", "bias"))
    yield from ((f"last_layer.1.{name}", f"head.mix.1.{name}") for name in BATCH_NORM)
    yield from ((f"last_layer.3.{name}", f"head.classifier.{name}") for name in ("weight", "bias"))


def official_mdeq(model):
    """Return the weights of a multiscale DEQ as today's `locuslab/deq` names them."""
    names = classifier_names if isinstance(model, MDEQClassifier) else segmenter_names
    state = model.state_dict()
    official = {theirs: state.pop(ours) for theirs, ours in names(model.config)}
    assert not state
    return official


def official_transformer(model, *, is_old=False):
    """Return the weights of a DEQ-Transformer as today's `locuslab/deq`, or that before it, names them."""
    state, config = model.state_dict(), model.config
    official = {"pos_emb.inv_freq": torch.ones(config.features // 2)}
    for i in range(len(config.cutoffs) + 1):
        table = state.pop(f"softmax.embedding.tables.{i}")
        official |= {f"word_emb.emb_layers.{i}.weight": table, f"crit.out_layers.{i}.weight": table}
        official[f"crit.out_layers.{i}.bias"] = state.pop(f"softmax.biases.{i}")
        if config.cutoffs:
            projection = state.pop(f"softmax.embedding.projections.{i}")
            own = state.pop(f"softmax.projections.{i}", projection)
            official |= {f"word_emb.emb_projs.{i}.weight": projection, f"crit.out_projs.{i}.weight": own}
    if config.cutoffs:
        for name in ("cluster_weight", "cluster_bias"):
            official[f"crit.{name}"] = state.pop(f"softmax.{name}").flip(0)
    official["inject_conv.weight"] = state.pop("injection.weight")[..., None]
    official["inject_conv.bias"] = state.pop("injection.bias")
    kinds = (("weight_g", "g"), ("weight_v", "v")) if config.weight_norm else (("weight", "weight"),)
    cell = "layer.cell"
    for theirs, ours in kinds:
        for net, name in (("qkv_net", "qkv"), ("r_net", "position"), ("o_net", "out")):
            official[f"func.dec_attn.{net}.{theirs}"] = state.pop(f"{cell}.attention.{name}.{ours}")[..., None]
        for n in (1, 2):
            weight = state.pop(f"{cell}.linear{n}.{ours}")
            official[f"func.pos_ff.ff{n}_net.{theirs}"] = weight[..., None] if is_old else weight
    official["func.dec_attn.o_net.bias"] = state.pop(f"{cell}.attention.out.bias")
    for n in (1, 2):
        official[f"func.pos_ff.ff{n}_net.bias"] = state.pop(f"{cell}.linear{n}.bias")
    for theirs, ours in (("r_w_bias", "content_bias"), ("r_r_bias", "position_bias")):
        official[f"func.dec_attn.{theirs}"] = state.pop(f"{cell}.attention.{ours}").squeeze(1)
    assert not state
    if is_old:
        official |= copies(official, "func", "func_copy")
    return official


def copies(official, part, copy):
    """Return the copies of the cell that older versions had: not normalized, under several names."""
    cell = {name.removeprefix(f"{part}."): tensor for name, tensor in official.items() if name.startswith(f"{part}.")}
    found = {}
    for name, tensor in cell.items():
        plain = name.removesuffix("_v")
        if not name.endswith("_g"):
            found |= {f"{copy}.{plain}": tensor, f"deq.{copy}.{plain}": tensor}
        found[f"deq.{part}.{name}"] = tensor
    return found


def randomized(model):
    """Return a model whose weights all differ, and whose buffers are not those of a new one."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape) + 0.5 if tensor.is_floating_point() else torch.tensor(7))
    return model.eval()


def assert_equal(model, other):
    assert type(model) is type(other)
    weights, others = model.state_dict(), other.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())
    assert not other.training


def tiny_classifier(**fields):
    sizes = {"channels": (8, 16, 8), "head_channels": (2, 3, 4), "final_channels": 6, "expansion": 2, "num_classes": 5}
    return randomized(MDEQClassifier(**{**sizes, **fields}))


def tiny_transformer(**fields):
    sizes = {"vocab_size": 60, "features": 16, "num_heads": 2, "hidden_features": 12, "cutoffs": (10, 30)}
    return randomized(DEQTransformerLM(**{**sizes, "div_value": 4.0, **fields}))


# Round trips, bit for bit


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, {}),
        ({"channels": (8, 8), "head_channels": (2, 2)}, {}),
        ({"channels": (8, 8), "head_channels": (2, 2), "num_downsamplings": 1}, {"num_downsamplings": 1}),
        ({"num_downsamplings": 2, "post_affine": True}, {"num_downsamplings": 2}),
        ({"num_downsamplings": 4, "image_channels": 1}, {}),
        ({"weight_norm": False, "groups": 4, "dropout": 0.1}, {"groups": 4, "dropout": 0.1}),
    ],
)
def test_classifiers_of_todays_version_come_back(fields, told):
    model = tiny_classifier(**fields)
    loaded = from_official(official_mdeq(model), **told)
    assert_equal(model, loaded)
    assert loaded.config == model.config
    x = torch.randn(2, model.config.image_channels, 64, 64)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_segmenters_come_back_with_the_loss_around_them(kernel_size):
    model = randomized(
        MDEQSegmenter(channels=(8, 16), expansion=2, num_downsamplings=2, num_classes=4, kernel_size=kernel_size)
    )
    official = {f"model.{name}": tensor for name, tensor in official_mdeq(model).items()}
    # As the official training saves it, with the weights of the classes in the loss.
    official["loss.criterion.weight"] = torch.ones(4)
    assert_equal(model, from_official(official, num_downsamplings=2))


def test_normalized_fusions_of_torchdeqs_zoo_are_multiplied_out():
    model = tiny_classifier(post_affine=True)
    official = {n.replace("fullstage.", "full_stage."): tensor for n, tensor in official_mdeq(model).items()}
    for name in [name for name in official if "fuse_layers" in name and name.endswith(".conv.weight")]:
        if "post_fuse" not in name:
            weight = official.pop(name)
            official[f"{name}_g"] = torch.linalg.vector_norm(weight, dim=(1, 2, 3), keepdim=True)
            official[f"{name}_v"] = 3 * weight
    loaded = from_official(official).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(loaded[name], tensor, rtol=1e-6, atol=0)
    for kind in "gv":
        name = "fuse_layers.0.1.net.conv.weight"
        with pytest.raises(ValueError, match=f"fullstage.{name} is missing; .*fullstage.{name}_[gv] is left over"):
            from_official({key: weight for key, weight in official.items() if key != f"full_stage.{name}_{kind}"})


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"tied": "tails"},
        {"tied": "none"},
        {"cutoffs": (), "div_value": 1.0},
        {"weight_norm": False},
        {"head_features": 5, "num_heads": 3},
    ],
)
def test_transformers_of_both_versions_come_back(fields, is_old):
    model = tiny_transformer(**fields)
    loaded = from_official(official_transformer(model, is_old=is_old))
    assert_equal(model, loaded)
    assert loaded.config == model.config
    tokens = torch.randint(60, (2, 5))
    assert torch.equal(loaded(tokens).hidden, model(tokens).hidden)


def test_projections_that_are_equal_may_be_kept_apart():
    official = official_transformer(tiny_transformer(tied="tails"))
    loaded = from_official(official, tied="none")
    assert len(loaded.softmax.projections) == 3
    assert torch.equal(loaded.softmax.projections[2], official["crit.out_projs.2.weight"])


def test_dense_monotone_networks_come_back():
    model = randomized(MonotoneDEQ(kind="dense", channels=7, image_size=28))
    names = {"mon.linear_module.U": "injection.1", "Wout": "head"}
    state = model.state_dict()
    official = {f"{a}.{n}": state.pop(f"{b}.{n}") for a, b in names.items() for n in ("weight", "bias")}
    official |= {f"mon.linear_module.{n}.weight": state.pop(f"layer.cell.operator.{n}") for n in "AB"}
    assert not state
    loaded = from_official(official, m=0.1)
    assert_equal(model, loaded)
    assert loaded.config == replace(model.config, m=0.1)
    color = official | {"mon.linear_module.U.weight": torch.zeros(7, 3 * 16 * 16)}
    assert (from_official(color).config.image_channels, from_official(color).config.image_size) == (3, 16)


PREFIXES = ("module.", "model.", "module.model.", "model.module.", "module.module.")
LAYOUTS = {
    "older": lambda official: official | copies(official, "fullstage", "fullstage_copy"),
    "torchdeq's zoo": lambda official: {name.replace("fullstage.", "full_stage."): w for name, w in official.items()},
    **{p: lambda official, p=p: {f"{p}{name}": w for name, w in official.items()} for p in PREFIXES},
}


@pytest.mark.parametrize("change", LAYOUTS.values(), ids=LAYOUTS)
def test_classifiers_of_other_versions_and_of_wrapped_modules_come_back(change):
    model = tiny_classifier(post_affine=True)
    assert_equal(model, from_official(change(official_mdeq(model))))


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("has_old_format", [False, True])
def test_training_checkpoints_are_read_from_files(wrapper, has_old_format, tmp_path):
    model = tiny_classifier()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 3, 16, 16)).sum().backward()
    optimizer.step()
    content = {"epoch": 3, wrapper: official_mdeq(model), "optimizer": optimizer.state_dict(), "perf": torch.ones(1)}
    path = tmp_path / "checkpoint.pth.tar"
    torch.save(content, path, _use_new_zipfile_serialization=not has_old_format)
    assert_equal(model, from_official(path))
    assert_equal(model, from_official(str(path)))
    save_file(official_mdeq(model), tmp_path / "model.safetensors")
    assert_equal(model, from_official(tmp_path / "model.safetensors"))


def test_half_precision_and_a_batch_norm_that_never_counted_do_not_matter():
    model = tiny_classifier()
    official = {n: w.double() for n, w in official_mdeq(model).items() if not n.endswith("num_batches_tracked")}
    loaded = from_official(official)
    for name, tensor in model.state_dict().items():
        expected = torch.zeros_like(tensor) if name.endswith("num_batches_tracked") else tensor
        assert torch.equal(loaded.state_dict()[name], expected)


# What is inferred


@pytest.mark.parametrize("name", [name for name in available() if name.startswith("mdeq/")])
def test_the_config_of_every_multiscale_preset_is_found_by_its_shapes(name):
    config = preset(name)
    with torch.device("meta"):
        official = official_mdeq(config.build())
        checkpoint = read_official(official)
        checkpoint.build()
    # Dropout is all that may differ between presets of the same shapes.
    assert replace(checkpoint.config, dropout=config.dropout) == config
    assert read_official(official, preset_name=name).config == config


@pytest.mark.parametrize("name", [name for name in available() if name.startswith("deq-transformer/")])
def test_the_config_of_every_transformer_preset_is_found_by_its_shapes(name):
    config = preset(name)
    with torch.device("meta"):
        shapes = {key: weight.shape for key, weight in official_transformer(config.build()).items()}
    # Zeros that take no memory.
    official = {key: torch.zeros(()).expand(shape) for key, shape in shapes.items()}
    checkpoint = read_official(official)
    told = {field: getattr(config, field) for field in ("memory_length", "dropout", "attention_dropout", "norm")}
    assert replace(checkpoint.config, **told) == config
    assert checkpoint.preset == name.removesuffix("-jr").removesuffix("-pre")
    assert read_official(official, preset_name=name).config == config


def test_solver_and_adjoint_are_passed_on():
    model = from_official(official_mdeq(tiny_classifier()), solver=Anderson(max_evals=3), adjoint=OneStep())
    assert model.layer.solver == Anderson(max_evals=3)
    assert model.layer.adjoint == OneStep()


def test_fields_that_contradict_the_weights_are_refused():
    official = official_mdeq(tiny_classifier())
    with pytest.raises(
        ValueError, match=r"channels is \(8, 8, 8\), but the weights of The state dict have \(8, 16, 8\)"
    ):
        from_official(official, channels=(8, 8, 8))
    assert from_official(official, channels=[8, 16, 8]).config.channels == (8, 16, 8)
    with pytest.raises(
        ValueError, match=r"downsample.DS3.weight is missing; .*downsample.DS3-BN.running_var is missing"
    ):
        from_official(official, num_downsamplings=3)
    with pytest.raises(TypeError, match=r"group is not a field of MDEQClassifier.Config. Did you mean 'groups'"):
        from_official(official, group=4)
    with pytest.raises(ValueError, match=r"crit.out_projs.1.weight is not equal to word_emb.emb_projs.1.weight"):
        from_official(official_transformer(tiny_transformer(tied="none")), tied="tails")
    untied = official_transformer(tiny_transformer())
    untied["crit.out_layers.1.weight"] = untied["crit.out_layers.1.weight"] + 1
    with pytest.raises(ValueError, match=r"crit.out_layers.1.weight is not equal to word_emb.emb_layers.1.weight"):
        from_official(untied)
    narrow = official_mdeq(tiny_classifier(channels=(28, 28, 28), groups=4))
    with pytest.raises(ValueError, match=r"multiple of groups \(8\)"):
        from_official(narrow)
    assert from_official(narrow, groups=4).config.groups == 4
    with pytest.raises(ValueError, match="the preset 'resnet/18' is another model"):
        read_official(official, preset_name="resnet/18")
    with pytest.raises(
        ValueError, match=r"does not fit the preset 'mdeq/cifar10-tiny': its weights have channels=\(8, 16, 8\)"
    ):
        read_official(official, preset_name="mdeq/cifar10-tiny")


# What is refused


def test_every_weight_that_is_missing_or_does_not_fit_is_named():
    official = official_mdeq(tiny_classifier())
    del official["final_layer.1.bias"], official["stage0.1.running_mean"]
    official["final_layer.0.bias"] = torch.zeros(7)
    official["another.weight"] = official["fullstage.branches.0.blocks.1.conv1.weight_g"] = torch.zeros(1)
    with pytest.raises(ValueError, match="does not fit") as error:
        from_official(official)
    for problem in (
        "final_layer.1.bias is missing",
        "stage0.1.running_mean is missing",
        "final_layer.0.bias has shape (7,) instead of (6,)",
        "another.weight is left over",
        "fullstage.branches.0.blocks.1.conv1.weight_g is left over",
    ):
        assert problem in str(error.value)
    assert "\n" not in str(error.value)
    # These the config is inferred from.
    for name in ("downsample.0.weight", "fullstage.branches.1.blocks.0.gn2.weight", "classifier.weight"):
        rest = {other: weight for other, weight in official.items() if other != name}
        with pytest.raises(ValueError, match=rf"{name} is missing"):
            from_official(rest)


def test_other_networks_are_refused():
    with pytest.raises(ValueError, match=r"does not hold a known network of locuslab/deq.*its weights are stem"):
        from_official(ResNet(blocks=(1,), widths=(4,)).state_dict())
    with pytest.raises(ValueError, match="holds no weights"):
        from_official({"epoch": 3, 0: torch.ones(2)})
    conv = {f"mon.linear_module.{name}.weight": torch.zeros(4, 4, 3, 3) for name in "UAB"}
    with pytest.raises(ValueError, match=r"mon.linear_module.A.weight is a convolution"):
        from_official(conv | {"Wout.weight": torch.zeros(10, 4), "Wout.bias": torch.zeros(10)})


class Trap:
    """Leaves a trace if it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("trap"),)


def test_files_are_refused_in_a_sentence_and_never_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_classifier()
    torch.save(nn.Linear(2, 2), "module.pt")
    torch.save({"state_dict": official_mdeq(model), "extra": Trap()}, "trap.pt")
    torch.save(official_mdeq(model), "whole.pt")
    save_file(official_mdeq(model), "whole.safetensors")
    torch.save([torch.ones(2)], "list.pt")
    for suffix in ("pt", "safetensors"):
        content = Path(f"whole.{suffix}").read_bytes()
        Path(f"half.{suffix}").write_bytes(content[: len(content) // 2])
        Path(f"empty.{suffix}").write_bytes(b"")
        Path(f"text.{suffix}").write_text("no checkpoint at all")
    reasons = {
        "module.pt": r"object of torch.nn.modules.linear.Linear besides tensors.*save the model.s state_dict\(\)",
        "trap.pt": "besides tensors, and loading it would execute code",
        "list.pt": "holds a list; it must hold a state dict",
        "missing.pt": "cannot be read: No such file",
        "missing.safetensors": "cannot be read: No such file",
    } | {f"{kind}.{suffix}": "is damaged" for kind in ("half", "empty", "text") for suffix in ("pt", "safetensors")}
    for name, reason in reasons.items():
        with pytest.raises(ValueError, match=reason) as error:
            from_official(name)
        assert str(error.value).startswith((name, f"{name} "))
        assert "\n" not in str(error.value)
    assert not Path("trap").exists()


def zipped(program: bytes, tensors: bytes = b"", compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in (("data.pkl", program), ("version", b"3\n"), ("data/0", tensors)):
            file.writestr(f"archive/{name}", content)
    return buffer.getvalue()


TEXT = b"X" + struct.pack("<I", 4_000_000) + b"a" * 4_000_000 + b"q\x00"
ENCODE = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
BOMBS = {
    "a text that becomes bytes again and again": lambda: zipped(b"\x80\x02(" + TEXT + ENCODE * 400 + b"l."),
    "the same as it was saved before 1.6": lambda: b"\x80\x02(" + TEXT + ENCODE * 400 + b"l.",
    "millions of instructions": lambda: zipped(b"\x80\x02](" + b"N" * 3_000_000 + b"e."),
    "millions of zeros": lambda: zipped(b"\x80\x02}.", bytes(50_000_000), zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_checkpoint_takes_more_than_its_size(bomb, tmp_path, monkeypatch):
    (tmp_path / "bomb.pth").write_bytes(BOMBS[bomb]())
    # Before PyTorch makes anything of it.
    monkeypatch.setattr(torch, "load", lambda *_, **__: {})
    with pytest.raises(ValueError, match=r"bomb\.pth is damaged or not a file of weights"):
        from_official(tmp_path / "bomb.pth")
