"""Models with the weights of the authors' checkpoints: `locuslab/deq`, `locuslab/mdeq`, torchdeq's zoo and more.

A checkpoint has no config. Sizes are inferred from the shapes of its weights; everything else comes from a preset with
the same shapes. Nothing in a file is ever executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..nn.adaptive_softmax import Tying
from .base import AbstractModelConfig
from .mdeq import MDEQClassifier, MDEQSegmenter
from .monotone import MonotoneDEQ
from .presets import available, preset
from .pretrained import read_weights
from .transformer import DEQTransformerLM

Weights = dict[str, Tensor]
Rule = tuple[str, str | Callable[[re.Match[str]], str]]
"""A pattern of our names, and the name in a checkpoint."""

# The maps, ours -> theirs. The first rule that fits a name counts.

_CELL = r"backbone\.layer\.cell"
_MDEQ: tuple[Rule, ...] = (
    (r"backbone\.stem\.0\.0\.(\w+)", r"downsample.0.\1"),
    (r"backbone\.stem\.0\.1\.(\w+)", r"downsample.1.\1"),
    (r"backbone\.stem\.1\.0\.(\w+)", r"downsample.3.\1"),
    (r"backbone\.stem\.1\.1\.(\w+)", r"downsample.4.\1"),
    (r"backbone\.stem\.(\d+)\.0\.(\w+)", lambda m: f"downsample.DS{int(m[1]) + 1}.{m[2]}"),
    (r"backbone\.stem\.(\d+)\.1\.(\w+)", lambda m: f"downsample.DS{int(m[1]) + 1}-BN.{m[2]}"),
    (r"backbone\.injection\.(\d)\.(\w+)", r"stage0.\1.\2"),
    (rf"{_CELL}\.blocks\.(\d+)\.(conv\d)\.([gv])", r"fullstage.branches.\1.blocks.0.\2.weight_\3"),
    (rf"{_CELL}\.blocks\.(\d+)\.(conv\d)\.weight", r"fullstage.branches.\1.blocks.0.\2.weight"),
    (rf"{_CELL}\.blocks\.(\d+)\.norm(\d)\.(\w+)", r"fullstage.branches.\1.blocks.0.gn\2.\3"),
    (rf"{_CELL}\.fusions\.(\d+)\.(\d+)\.(\d+)\.(\w+)", lambda m: _fusion(*map(int, m.groups()[:3])) + f".{m[4]}"),
    (rf"{_CELL}\.posts\.(\d+)\.([gv])", r"fullstage.post_fuse_layers.\1.conv.weight_\2"),
    (rf"{_CELL}\.posts\.(\d+)\.weight", r"fullstage.post_fuse_layers.\1.conv.weight"),
    (rf"{_CELL}\.norms\.(\d+)\.(\w+)", r"fullstage.post_fuse_layers.\1.gnorm.\2"),
)
_CLASSIFIER: tuple[Rule, ...] = (
    *_MDEQ,
    (r"head\.bottlenecks\.(\d+)\.body\.([036])\.(\w+)", lambda m: f"incre_modules.{m[1]}.0.conv{_third(m[2])}.{m[3]}"),
    (r"head\.bottlenecks\.(\d+)\.body\.([147])\.(\w+)", lambda m: f"incre_modules.{m[1]}.0.bn{_third(m[2])}.{m[3]}"),
    (r"head\.bottlenecks\.(\d+)\.skip\.(\d)\.(\w+)", r"incre_modules.\1.0.downsample.\2.\3"),
    (r"head\.downs\.(\d+)\.(\d)\.(\w+)", r"downsamp_modules.\1.\2.\3"),
    (r"head\.final\.(\d)\.(\w+)", r"final_layer.\1.\2"),
    (r"head\.classifier\.(\w+)", r"classifier.\1"),
)
_SEGMENTER: tuple[Rule, ...] = (
    *_MDEQ,
    (r"head\.mix\.(\d)\.(\w+)", r"last_layer.\1.\2"),
    (r"head\.classifier\.(\w+)", r"last_layer.3.\1"),
)
_ATTENTION = r"layer\.cell\.attention"
_NETS = {"qkv": "qkv_net", "position": "r_net", "out": "o_net"}
_TRANSFORMER: tuple[Rule, ...] = (
    (r"softmax\.embedding\.tables\.(\d+)", r"word_emb.emb_layers.\1.weight"),
    (r"softmax\.embedding\.projections\.(\d+)", r"word_emb.emb_projs.\1.weight"),
    (r"softmax\.projections\.(\d+)", r"crit.out_projs.\1.weight"),
    (r"softmax\.biases\.(\d+)", r"crit.out_layers.\1.bias"),
    (r"softmax\.(cluster_\w+)", r"crit.\1"),
    (r"injection\.(\w+)", r"inject_conv.\1"),
    (rf"{_ATTENTION}\.(qkv|position|out)\.([gv])", lambda m: f"func.dec_attn.{_NETS[m[1]]}.weight_{m[2]}"),
    (rf"{_ATTENTION}\.(qkv|position|out)\.(\w+)", lambda m: f"func.dec_attn.{_NETS[m[1]]}.{m[2]}"),
    (rf"{_ATTENTION}\.content_bias", r"func.dec_attn.r_w_bias"),
    (rf"{_ATTENTION}\.position_bias", r"func.dec_attn.r_r_bias"),
    (r"layer\.cell\.linear(\d)\.([gv])", r"func.pos_ff.ff\1_net.weight_\2"),
    (r"layer\.cell\.linear(\d)\.(\w+)", r"func.pos_ff.ff\1_net.\2"),
)
_MONOTONE: tuple[Rule, ...] = (
    (r"injection\.1\.(\w+)", r"mon.linear_module.U.\1"),
    (r"layer\.cell\.operator\.([AB])", r"mon.linear_module.\1.weight"),
    (r"head\.(\w+)", r"Wout.\1"),
)

_REVERSED = ("crit.cluster_weight", "crit.cluster_bias")
"""What has its rows in reverse order in a checkpoint."""
_EQUAL: tuple[tuple[str, str], ...] = (
    (r"crit\.out_layers\.(\d+)\.weight", r"word_emb.emb_layers.\1.weight"),
    (r"crit\.out_projs\.(\d+)\.weight", r"word_emb.emb_projs.\1.weight"),
)
"""What may be there besides, if it equals something else: tables and projections that embedding and softmax share."""
_IGNORED = re.compile(r"(fullstage_copy|func_copy|deq|loss)\..*|pos_emb\.inv_freq")
"""Copies that older versions made of the cell, the weights of classes in a loss, and constants."""
_PREFIX = re.compile(r"^((module|model)\.)+")
_WRAPPERS = ("state_dict", "model_state_dict", "model")


def _fusion(scale: int, source: int, place: int) -> str:
    """Return the name of a layer between two scales: several steps downwards, and a single one upwards."""
    kind = "gnorm" if place % 3 else "conv"
    return f"fullstage.fuse_layers.{scale}.{source}.net.{f'{place // 3}.' if source < scale else ''}{kind}"


def _third(place: str) -> int:
    return int(place) // 3 + 1


# What shapes tell: fields of our configs.


def _count(weights: Weights, prefix: str) -> int:
    """Return how many parts of a name there are, from 0 on; at least one, which is missed if it is not there."""
    found = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in weights)
    return 1 + max((int(match[1]) for match in found if match), default=0)


def _infer_mdeq(weights: Weights) -> dict[str, Any]:
    scales = range(_count(weights, "fullstage.branches"))
    gn1, gn2 = ([len(weights[f"fullstage.branches.{i}.blocks.0.gn{n}.weight"]) for i in scales] for n in (1, 2))
    fields = {
        "channels": tuple(gn2),
        "image_channels": weights["downsample.0.weight"].shape[1],
        "expansion": gn1[0] // gn2[0],
        "weight_norm": "fullstage.branches.0.blocks.0.conv1.weight_v" in weights,
        "post_affine": "fullstage.post_fuse_layers.0.gnorm.weight" in weights,
    }
    if further := [name for name in weights if re.fullmatch(r"downsample\.DS\d+\.weight", name)]:
        fields["num_downsamplings"] = 2 + len(further)
    elif "stage0.0.weight" not in weights:
        fields["num_downsamplings"] = 0
    return fields


def _infer_classifier(weights: Weights) -> dict[str, Any]:
    fields = _infer_mdeq(weights)
    num_classes, final_channels = weights["classifier.weight"].shape
    heads = tuple(len(weights[f"incre_modules.{i}.0.conv1.weight"]) for i in range(len(fields["channels"])))
    return fields | {"head_channels": heads, "final_channels": final_channels, "num_classes": num_classes}


def _infer_segmenter(weights: Weights) -> dict[str, Any]:
    num_classes, _, kernel_size, _ = weights["last_layer.3.weight"].shape
    return _infer_mdeq(weights) | {"num_classes": num_classes, "kernel_size": kernel_size}


def _infer_transformer(weights: Weights) -> dict[str, Any]:
    clusters = range(_count(weights, "word_emb.emb_layers"))
    tables = [weights[f"word_emb.emb_layers.{i}.weight"].shape for i in clusters]
    *cutoffs, vocab_size = accumulate(rows for rows, _ in tables)
    features = weights["inject_conv.weight"].shape[1]
    num_heads, head_features = weights["func.dec_attn.r_w_bias"].shape
    fields = {
        "vocab_size": vocab_size,
        "cutoffs": tuple(cutoffs),
        "div_value": float(round(features / tables[1][1])) if cutoffs else 1.0,
        "features": features,
        "num_heads": num_heads,
        "hidden_features": len(weights["func.pos_ff.ff1_net.bias"]),
        "weight_norm": "func.dec_attn.qkv_net.weight_v" in weights,
    }
    return fields if num_heads * head_features == features else fields | {"head_features": head_features}


def _infer_monotone(weights: Weights) -> dict[str, Any]:
    if weights["mon.linear_module.A.weight"].dim() != 2:
        raise ValueError(
            "mon.linear_module.A.weight is a convolution. Only dense monotone networks can be read, because the "
            "official convolutional ones keep the border of the state at zero."
        )
    channels, num_inputs = weights["mon.linear_module.U.weight"].shape
    fields = {"kind": "dense", "channels": channels, "num_classes": len(weights["Wout.bias"])}
    for image_channels in (1, 3):
        size = math.isqrt(num_inputs // image_channels)
        if image_channels * size**2 == num_inputs:
            return fields | {"image_channels": image_channels, "image_size": size}
    return fields


@dataclass(frozen=True, kw_only=True)
class _Network:
    """A network of the authors."""

    model: Any
    """The class of our model."""
    marks: tuple[str, ...]
    """How names begin by which it is recognized."""
    rules: tuple[Rule, ...]
    infer: Callable[[Weights], dict[str, Any]]

    def is_in(self, weights: Weights) -> bool:
        """Return whether weights are those of such a network, as far as their names tell."""
        return all(any(name.startswith(f"{mark}.") for name in weights) for mark in self.marks)

    def official_name(self, name: str) -> str:
        """Return what the authors call one of our weights."""
        for pattern, template in self.rules:
            if match := re.fullmatch(pattern, name):
                return match.expand(template) if isinstance(template, str) else template(match)
        raise AssertionError(f"No rule for {name}.")


_NETWORKS = (
    _Network(model=MDEQClassifier, marks=("fullstage", "classifier"), rules=_CLASSIFIER, infer=_infer_classifier),
    _Network(model=MDEQSegmenter, marks=("fullstage", "last_layer"), rules=_SEGMENTER, infer=_infer_segmenter),
    _Network(model=DEQTransformerLM, marks=("func.dec_attn",), rules=_TRANSFORMER, infer=_infer_transformer),
    _Network(model=MonotoneDEQ, marks=("mon.linear_module",), rules=_MONOTONE, infer=_infer_monotone),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class OfficialCheckpoint:
    """A checkpoint of the authors that was read and recognized."""

    source: str
    """What it was read from, for messages."""
    weights: Weights
    """Its weights, by the names of the authors' latest version."""
    network: _Network
    """What it holds."""
    config: AbstractModelConfig
    """The config of our model."""
    inferred: dict[str, Any]
    """Fields of the config that were inferred from the weights."""
    preset: str | None
    """Name of the preset that its other fields come from; None for the defaults."""

    def build(self, **arguments: Any) -> Any:
        """Return the model in evaluation mode.

        Args:
            **arguments: Arguments of the model, such as `solver` and `adjoint`.

        Raises:
            ValueError: Weights do not fit; all of them are named.
        """
        model = self.network.model(self.config, **arguments)
        left, loaded, problems = dict(self.weights), {}, []
        for name, own in model.state_dict().items():
            official = self.network.official_name(name)
            tensor = left.pop(official, None)
            if tensor is None:
                # Old versions of PyTorch did not count the batches that a BatchNorm has seen.
                if not official.endswith("num_batches_tracked"):
                    problems.append(f"{official} is missing")
            elif _essential(tensor.shape) != _essential(own.shape):
                problems.append(f"{official} has shape {tuple(tensor.shape)} instead of {tuple(own.shape)}")
            else:
                loaded[name] = (tensor.flip(0) if official in _REVERSED else tensor).reshape(own.shape)
        problems += filter(None, map(self._explain, left))
        if problems:
            raise ValueError(f"{self.source} does not fit {self.config!r}: {'; '.join(problems)}.")
        model.load_state_dict(loaded, strict=False)
        return model.eval()

    def _explain(self, name: str) -> str | None:
        """Return why a weight that has no place is wrong, if it is."""
        for pattern, template in _EQUAL:
            if match := re.fullmatch(pattern, name):
                other = match.expand(template)
                is_equal = other in self.weights and torch.equal(self.weights[name], self.weights[other])
                return None if is_equal else f"{name} is not equal to {other}"
        return None if _IGNORED.fullmatch(name) else f"{name} is left over"


def from_official(source: Path | str | Mapping[str, Any], **overrides: Any) -> Any:
    """Return a model with the weights of a checkpoint of the authors, in evaluation mode.

    It reads multiscale DEQs and DEQ-Transformers of `locuslab/deq` (today's version and those before it, and
    `locuslab/mdeq`) and of torchdeq's zoo, and the dense monotone network of `locuslab/monotone_op_net`, as state dicts
    or as checkpoints of a training run. A pickled module is refused, as only executing it could read it.

    Widths, numbers of scales, classes and heads, vocabulary and clusters are inferred from the weights. All other
    fields come from the first preset with the same shapes, or else from the defaults of the config, unless you give
    them:

    - multiscale DEQs: `groups`, `dropout`, and `num_downsamplings` if it may be 0, 1 or 2, as strides have no weights;
    - DEQ-Transformers: `norm` (torchdeq's is "pre-textbook" or "post"), `memory_length`, `window` and dropout;
    - monotone networks: `m`, `splitting`, `alpha`, and `image_size` and `image_channels` of images that are not square,
      or neither gray nor of three colors.

    Args:
        source: The file, such as `model_state_dict.pth`, `checkpoint.pth.tar` or `*.safetensors`, or a state dict.
        **overrides: Fields of the config, and arguments of the model such as `solver` and `adjoint`.

    Returns:
        An `MDEQClassifier`, `MDEQSegmenter`, `DEQTransformerLM` or `MonotoneDEQ`.

    Raises:
        ValueError: The file cannot be read, or weights do not fit; all of them are named.

    Example:
        >>> official = {"Wout.weight": torch.zeros(10, 5), "Wout.bias": torch.zeros(10)}
        >>> official |= {f"mon.linear_module.{name}.weight": torch.zeros(5, 5) for name in "AB"}
        >>> official |= {"mon.linear_module.U.weight": torch.zeros(5, 64), "mon.linear_module.U.bias": torch.zeros(5)}
        >>> from_official(official, m=0.1).config.image_size
        8
    """
    arguments = {name: overrides.pop(name) for name in ("solver", "adjoint") if name in overrides}
    return read_official(source, **overrides).build(**arguments)


def read_official(
    source: Path | str | Mapping[str, Any], *, preset_name: str | None = None, **overrides: Any
) -> OfficialCheckpoint:
    """Read a checkpoint of the authors, and find the config of its model.

    Args:
        source: The file, or a state dict; see `from_official`.
        preset_name: Preset to use instead of inferring the sizes from the weights.
        **overrides: Fields of the config.

    Raises:
        ValueError: The file cannot be read or holds no network that is known here, or a field does not fit.
    """
    is_read = isinstance(source, Mapping)
    where = "The state dict" if is_read else str(source)
    weights = _normalize(source if is_read else read_weights(Path(source)), where)
    network = next((network for network in _NETWORKS if network.is_in(weights)), None)
    if network is None:
        raise ValueError(
            f"{where} does not hold a known network of locuslab/deq, locuslab/mdeq, locuslab/monotone_op_net or "
            f"torchdeq's zoo; its weights are {', '.join(list(weights)[:3])} ..."
        )
    kind = network.model.Config
    try:
        inferred = network.infer(weights)
    except KeyError as error:
        raise ValueError(f"{where} does not fit {kind.__qualname__}: {error.args[0]} is missing.") from None
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{where} does not fit {kind.__qualname__}: {error}") from error
    for name, value in overrides.items():
        known = inferred.get(name, value)
        if value != known and value != list(known):
            raise ValueError(f"{name} is {value!r}, but the weights of {where} have {known!r}.")
    if preset_name is None:
        fields = inferred | overrides
        preset_name = next((name for name in available() if _agrees(preset(name), kind, inferred)), None)
    else:
        fields = overrides
        if type(preset(preset_name)) is not kind:
            raise ValueError(f"{where} holds a {kind.__qualname__}, but the preset {preset_name!r} is another model.")
        config = kind.resolve(preset(preset_name), overrides)
        for name, value in inferred.items():
            if getattr(config, name) != value:
                raise ValueError(
                    f"{where} does not fit the preset {preset_name!r}: its weights have {name}={value!r}, the preset "
                    f"has {getattr(config, name)!r}."
                )
    if network.model is DEQTransformerLM:
        inferred["tied"] = _tying(weights)
        fields = {"tied": inferred["tied"]} | fields
    config = kind.resolve(None if preset_name is None else preset(preset_name), fields)
    return OfficialCheckpoint(
        source=where, weights=weights, network=network, config=config, inferred=inferred, preset=preset_name
    )


def _agrees(config: AbstractModelConfig, kind: type, fields: dict[str, Any]) -> bool:
    return type(config) is kind and all(getattr(config, name) == value for name, value in fields.items())


def _tying(weights: Weights) -> Tying:
    """Return whether the projections of the tails are shared: in the authors' own checkpoints they are equal."""
    for name, tensor in weights.items():
        if match := re.fullmatch(r"crit\.out_projs\.([1-9]\d*)\.weight", name):
            other = weights.get(f"word_emb.emb_projs.{match[1]}.weight")
            if other is None or not torch.equal(tensor, other):
                return "none"
    return "tails"


def _essential(shape: Iterable[int]) -> list[int]:
    """Return the sizes that matter: a convolution with a kernel of one is a linear map."""
    return [size for size in shape if size != 1]


def _normalize(content: Mapping[str, Any], where: str) -> Weights:
    """Return the weights of a checkpoint by the names of the latest version, without what is around them."""
    while wrapper := next((name for name in _WRAPPERS if isinstance(content.get(name), Mapping)), None):
        content = content[wrapper]
    weights = {
        _PREFIX.sub("", name).replace("full_stage.", "fullstage."): tensor
        for name, tensor in content.items()
        if isinstance(name, str) and isinstance(tensor, Tensor)
    }
    if not weights:
        raise ValueError(f"{where} holds no weights; it must be a state dict, as returned by `model.state_dict()`.")
    # torchdeq normalizes the convolutions between scales too, which have plain weights here: the same map.
    for name in [name for name in weights if re.fullmatch(r"fullstage\.fuse_layers\..*\.weight_v", name)]:
        if (g := weights.pop(f"{name[:-1]}g", None)) is not None:
            v = weights.pop(name)
            weights[name[:-2]] = v * (g / torch.linalg.vector_norm(v, dim=(1, 2, 3), keepdim=True))
    return weights
