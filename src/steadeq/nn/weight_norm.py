"""Convolutions and linear maps with normalized weights (Salimans and Kingma, 2016)."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._internal.cached import AbstractCached

_M = TypeVar("_M", bound=nn.Module)


class WeightNormConv2d(AbstractCached[Tensor]):
    """A convolution without bias whose weight is g v / ‖v‖, with a norm for each output channel.

    Written out, as the double backward of torch's fused weight norm is wrong with respect to v. Initially g = ‖v‖, so
    that the weight is v, in torch's default initialization of convolutions.

    Args:
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Height and width of the kernel, an odd number; the resolution stays the same.

    Example:
        >>> WeightNormConv2d(4, 8, 3)(torch.zeros(1, 4, 6, 6)).shape
        torch.Size([1, 8, 6, 6])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        like = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)
        self.padding = kernel_size // 2
        self.v = nn.Parameter(like.weight.detach())
        self.g = nn.Parameter(_norm(like.weight.detach()))

    def compute(self) -> Tensor:
        """Return the weight."""
        return self.v * (self.g / _norm(self.v))

    def forward(self, z: Tensor) -> Tensor:
        """Convolve."""
        return F.conv2d(z, self.cached(), padding=self.padding)


class WeightNormLinear(AbstractCached[Tensor]):
    """A linear map whose weight is g v / ‖v‖, with a norm for each output feature.

    Written out, as the double backward of torch's fused weight norm is wrong with respect to v. Initially g = ‖v‖, so
    that the weight is v, in torch's default initialization of linear maps; the bias starts at zero.

    Args:
        in_features: Number of features of the input.
        out_features: Number of features of the output.
        bias: Whether a bias is added.

    Example:
        >>> WeightNormLinear(4, 8)(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        like = nn.Linear(in_features, out_features, bias=False)
        self.v = nn.Parameter(like.weight.detach())
        self.g = nn.Parameter(_norm(like.weight.detach()))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def compute(self) -> Tensor:
        """Return the weight."""
        return self.v * (self.g / _norm(self.v))

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return F.linear(x, self.cached(), self.bias)

    def extra_repr(self) -> str:
        """Show the sizes."""
        out_features, in_features = self.v.shape
        return f"in_features={in_features}, out_features={out_features}, bias={self.bias is not None}"


def make_linear(in_features: int, out_features: int, *, bias: bool = True, weight_norm: bool = True) -> nn.Module:
    """Return a linear map, with a normalized weight or with a plain one.

    Args:
        in_features: Number of features of the input.
        out_features: Number of features of the output.
        bias: Whether a bias is added.
        weight_norm: Whether the weight is normalized.
    """
    kind = WeightNormLinear if weight_norm else nn.Linear
    return kind(in_features, out_features, bias=bias)


class _NormalizedWeight(AbstractCached[Tensor]):
    """Mixed into the class of a layer: its weight is g v / ‖v‖, computed from the parameters `weight_g` and `weight_v`.

    A class and no hook, so that there is never a stale weight, nor one with a graph that cannot be copied.
    """

    weight_g: nn.Parameter
    weight_v: nn.Parameter

    @property
    def weight(self) -> Tensor:
        """The weight, cached during a solve."""
        return self.cached()

    def compute(self) -> Tensor:
        """Return the weight."""
        return self.weight_v * (self.weight_g / _norm(self.weight_v, _channel_dim(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Name the class of the layer when pickled or copied, as the one that has this mixed in has no name."""
        return _empty_normalized, (type(self).__bases__[1],), self.__getstate__()


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _channel_dim(layer: nn.Module) -> int:
    """Return the dimension of the output channels of a weight."""
    return 1 if isinstance(layer, _TRANSPOSED) else 0


@functools.cache
def _normalized_class(kind: type[nn.Module]) -> Any:
    return type(f"WeightNorm{kind.__name__}", (_NormalizedWeight, kind), {})


def _empty_normalized(kind: type[nn.Module]) -> nn.Module:
    """Return a layer without anything in it, to be filled from a pickle."""
    empty = _normalized_class(kind)
    return empty.__new__(empty)


def apply_weight_norm(module: _M) -> _M:
    """Normalize the weights of all linear and convolution layers in a module, itself included.

    The weight of each becomes g v / ‖v‖, with a norm for each output channel. The parameters `weight_g` and `weight_v`
    replace the parameter `weight`, which is computed from them and keeps its initial value. Call this after
    initialization and before you create the optimizer. A `DEQ` or `fixed_point` computes the weights once for all
    evaluations of a solve, and once more to attach the graph; in your own loops, use `cached_parameters`.

    The layers can be copied and pickled, and second derivatives are right. Weights that two layers share stay shared.
    Layers that are already normalized do not change.

    Args:
        module: The module, which is changed.

    Returns:
        The same module.

    Raises:
        ValueError: The module has no such layer, or a layer whose weight is zero, has no shape yet, or has a
            parametrization.

    Example:
        >>> cell = apply_weight_norm(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        >>> sorted(name for name, _ in cell.named_parameters())
        ['0.bias', '0.weight_g', '0.weight_v']
    """
    layers: dict[str, Any] = {
        name: part for name, part in module.named_modules() if isinstance(part, _LAYERS + _TRANSPOSED)
    }
    if not layers:
        raise ValueError(
            f"{type(module).__name__} has no linear or convolution layer whose weight could be normalized."
        )
    plain = {name: layer for name, layer in layers.items() if not isinstance(layer, _NormalizedWeight)}
    for name, layer in plain.items():
        _check_weight(name or type(layer).__name__, layer)
    norms: dict[nn.Parameter, nn.Parameter] = {}
    for layer in plain.values():
        v: nn.Parameter = layer._parameters.pop("weight")
        if v not in norms:
            norms[v] = nn.Parameter(_norm(v.detach(), _channel_dim(layer)), requires_grad=v.requires_grad)
        layer.__class__ = _normalized_class(type(layer))
        layer.register_parameter("weight_g", norms[v])
        layer.register_parameter("weight_v", v)
    return module


def _check_weight(name: str, layer: nn.Module) -> None:
    weight = layer._parameters.get("weight")
    if weight is None:
        raise ValueError(f"The weight of {name} already has a parametrization; remove it first.")
    if nn.parameter.is_lazy(weight):
        raise ValueError(f"The weight of {name} has no shape yet; call the module once before.")
    if not bool(_norm(weight.detach(), _channel_dim(layer)).all()):
        raise ValueError(f"The weight of {name} is zero for an output, so it has no direction; initialize it again.")


def remove_weight_norm(module: _M) -> _M:
    """Undo `apply_weight_norm`: the present weights become parameters again.

    Args:
        module: The module, which is changed.

    Returns:
        The same module.

    Example:
        >>> cell = remove_weight_norm(apply_weight_norm(nn.Linear(4, 4)))
        >>> sorted(name for name, _ in cell.named_parameters())
        ['bias', 'weight']
    """
    weights: dict[nn.Parameter, nn.Parameter] = {}
    for layer in module.modules():
        if not isinstance(layer, _NormalizedWeight):
            continue
        v = layer.weight_v
        if v not in weights:
            weights[v] = nn.Parameter(layer.compute().detach(), requires_grad=v.requires_grad)
        layer.__class__ = type(layer).__bases__[1]  # pyright: ignore[reportAttributeAccessIssue]
        del layer.weight_g, layer.weight_v
        layer.register_parameter("weight", weights[v])
    return module


def _norm(v: Tensor, channel_dim: int = 0) -> Tensor:
    return torch.linalg.vector_norm(v, dim=tuple(dim for dim in range(v.dim()) if dim != channel_dim), keepdim=True)
