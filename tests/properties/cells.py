"""Real cells, at initialization and after some training, and truths about them that need no solver.

Training is plain backpropagation through a few repetitions of the cell, and equilibria come from Newton's method with a
dense Jacobian: nothing here rests on what the tests judge.
"""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadeq import DEQ, Equilibrium
from steadeq._internal.trees import leaves, map_leaves, rebuild
from steadeq.models import ConvDEQ, TransformerCell, create
from steadeq.models.monotone import MonotoneCell, MonotoneLinear

BATCH = 3
STAGES = ("fresh", "trained")
PRECISIONS = ("float64", "float32", "autocast", "bfloat16")
"""Autocast computes in bfloat16 on states in float32; "bfloat16" has states and parameters in it."""


class Bare(nn.Module):
    """A cell by itself: its input is encoded as it is."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.layer = DEQ(cell)

    def encode(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        return torch.zeros_like(x), (x,)


class SkipMLP(nn.Module):
    """LN(z + W2 ReLU(W1 z + x))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(z + self.linear2(torch.relu(self.linear1(z) + x)), z.shape[1:])


class Damped(nn.Module):
    """0.8 z + 0.2 tanh(W z + x), with W of radius 0.9 at initialization."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.W = nn.Parameter(0.9 * torch.randn(dim, dim) / dim**0.5)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return 0.8 * z + 0.2 * torch.tanh(nn.functional.linear(z, self.W) + x)


class Attention(nn.Module):
    """A Transformer cell without memory, and what it shares between evaluations made anew each time."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.cell = TransformerCell(**options)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.cell(z, torch.cat([x, x, x], dim=2), *self.cell.prepare(z.shape[1]))


def _text(**options: Any) -> tuple[nn.Module, Any]:
    """The preset for laptops at a quarter of its width, on tokens that follow others."""
    model = create("deq-transformer/wt2-cpu", vocab_size=60, features=32, hidden_features=64, cutoffs=(20,), **options)
    states, injected = torch.randn(BATCH, 5, 32), 0.5 * torch.randn(BATCH, 5, 96)
    return model, (torch.randint(60, (BATCH, 6)), (states, injected))


def _monotone(splitting: str) -> tuple[nn.Module, Any]:
    return Bare(MonotoneCell(MonotoneLinear(features=80, m=0.5), splitting=splitting)), (torch.randn(BATCH, 80),)


def _attention(norm: str) -> tuple[nn.Module, Any]:
    cell = Attention(features=16, num_heads=2, hidden_features=32, norm=norm)
    return Bare(cell), (torch.randn(BATCH, 7, 16),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of cell."""

    make: Callable[[], tuple[nn.Module, Any]]
    """Returns the model around the cell, and what it encodes."""
    rate: float = 1e-2
    """Of training."""
    precisions: tuple[str, ...] = PRECISIONS
    """In which the cell can be evaluated."""
    is_singular: bool = False
    """Whether 1 is an eigenvalue of J."""
    difficulty: str
    """Why it is here."""


KINDS = {
    "toy": Kind(make=lambda: (create("toy"), (torch.randn(BATCH, 1),)), difficulty="a Krylov space of one dimension"),
    "mlp": Kind(make=lambda: (Bare(SkipMLP(96)), (torch.randn(BATCH, 96),)), difficulty="a skip connection"),
    "damped": Kind(
        make=lambda: (Bare(Damped(128)), (torch.randn(BATCH, 128),)),
        rate=0.1,
        difficulty="J = 0.8 I + something smaller",
    ),
    "conv": Kind(
        make=lambda: (ConvDEQ(channels=4, hidden=8, groups=2), (torch.randn(BATCH, 1, 6, 6),)),
        difficulty="no skip connection: images have little along the basis",
    ),
    "mdeq": Kind(
        make=lambda: (create("mdeq/cifar10-cpu", channels=(8, 16)), (torch.randn(BATCH, 3, 8, 8),)),
        difficulty="a state of two tensors",
    ),
    # The inverse of a matrix is not there in bfloat16.
    "monotone": Kind(
        make=lambda: _monotone("peaceman-rachford"),
        precisions=PRECISIONS[:3],
        difficulty="|z|, and a spectrum that is far from real",
    ),
    "monotone-forward": Kind(
        make=lambda: _monotone("forward-backward"), precisions=PRECISIONS[:3], difficulty="J = I - something small"
    ),
    "post-ln": Kind(make=lambda: _attention("post"), difficulty="a residual stream, normalized"),
    "pre-ln": Kind(make=lambda: _attention("pre"), difficulty="a residual stream"),
    # What is added to all features of a position alike passes through: every equilibrium is a line of them.
    "pre-ln-textbook": Kind(
        make=lambda: _attention("pre-textbook"), is_singular=True, difficulty="J = I + something: I - J is small"
    ),
    "text": Kind(make=_text, difficulty="causal, with memory"),
    "text-pre": Kind(make=lambda: _text(norm="pre"), difficulty="causal, with memory"),
}
NAMES = [(name, stage) for name in KINDS for stage in STAGES]
QUICK = ("toy", "damped", "mdeq", "monotone", "pre-ln-textbook", "text")
"""One kind of each difficulty; the others are slow tests."""


def param(name: str, *others: Any) -> Any:
    """Return the arguments of a test of a cell, marked if it is not one of the quick."""
    return pytest.param(name, *others, marks=() if name in QUICK else pytest.mark.slow)


each_cell = pytest.mark.parametrize(("name", "stage"), [param(*pair) for pair in NAMES])
CASES = [(*pair, precision) for pair in NAMES for precision in KINDS[pair[0]].precisions]
each_case = pytest.mark.parametrize(("name", "stage", "precision"), [param(*each) for each in CASES])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A cell on a batch, in some precision."""

    name: str
    stage: str
    precision: str
    f: Callable[..., Any]
    z0: Any
    inputs: tuple[Any, ...]
    near: Any
    """The equilibrium, rounded to the state's dtype."""

    def computing(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context that the cell is meant for."""
        if self.precision == "autocast":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def evaluate(self, z: Any) -> Any:
        """Return f(z)."""
        with torch.no_grad(), self.computing():
            return self.f(z, *self.inputs)

    @property
    def equilibrium(self) -> Equilibrium:
        """The cell at the point near its equilibrium."""
        return Equilibrium.at(self.f, self.near, *self.inputs)

    @property
    def eps(self) -> float:
        """Of the narrowest dtype that f computes in."""
        return torch.finfo(torch.bfloat16 if self.precision == "autocast" else getattr(torch, self.precision)).eps

    @property
    def is_coarse(self) -> bool:
        """Whether f computes in half precision."""
        return self.precision in ("autocast", "bfloat16")

    @property
    def dim(self) -> int:
        return flatten(self.z0).shape[1]


def flatten(state: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the (B, D) matrix of a state."""
    return torch.cat([leaf.to(dtype).flatten(1) for leaf in leaves(state)], dim=1)


def unflatten(matrix: Tensor, like: Any) -> Any:
    """Return the state of a matrix."""
    parts = matrix.split([leaf[0].numel() for leaf in leaves(like)], dim=1)
    return rebuild(
        like, (part.reshape(leaf.shape).to(leaf.dtype) for part, leaf in zip(parts, leaves(like), strict=True))
    )


def norms(matrix: Tensor) -> Tensor:
    """Return the (B,) norms of rows, in float64."""
    return torch.linalg.vector_norm(matrix.double(), dim=1)


@functools.cache
def case(name: str, stage: str, precision: str = "float64") -> Case:
    """Return a cell of the table in some precision."""
    model, x = _model(name, stage)
    dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)
    model = copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        z0, inputs = model.encode(*cast(x, dtype))
    f = model.layer.cell
    near = unflatten(_equilibrium(name, stage), z0)
    return Case(name=name, stage=stage, precision=precision, f=f, z0=z0, inputs=inputs, near=near)


@functools.cache
def twin(name: str, stage: str, precision: str) -> Case:
    """Return the same map, of the same (rounded) parameters and inputs at the same point, in float64."""
    narrow = case(name, stage, precision)
    return dataclasses.replace(
        narrow,
        precision="float64",
        f=copy.deepcopy(narrow.f).double(),
        z0=cast(narrow.z0, torch.float64),
        inputs=cast(narrow.inputs, torch.float64),
        near=cast(narrow.near, torch.float64),
    )


@functools.cache
def jacobian(name: str, stage: str, precision: str = "float64") -> Tensor:
    """Return the (B, D, D) Jacobian near the equilibrium, in float64.

    Of cells in bfloat16 it is the one that their own products show: with numbers as coarse as these some ReLUs are open
    that are closed in the twin.
    """
    cell = case(name, stage, precision)
    return dense(cell if cell.is_coarse else twin(name, stage, precision))


@functools.cache
def sigma(name: str, stage: str, precision: str = "float64") -> Tensor:
    """Return the (B,) largest singular values of the Jacobian."""
    return torch.linalg.matrix_norm(jacobian(name, stage, precision), 2)


@functools.cache
def resolvent(name: str, stage: str, precision: str = "float64") -> tuple[Tensor, Tensor]:
    """Return the (B, D, D) inverse of I - Jᵀ, and its (B,) norms."""
    J = jacobian(name, stage, precision)
    inverse = torch.linalg.inv(torch.eye(J.shape[1], dtype=J.dtype) - J.mT)
    return inverse, torch.linalg.matrix_norm(inverse, 2)


def dense(cell: Case, z: Any = None) -> Tensor:
    """Return the (B, D, D) Jacobian of a cell at a point, one product for each row of it."""
    z = map_leaves(lambda leaf: leaf.detach().requires_grad_(), cell.near if z is None else z)
    with torch.enable_grad(), cell.computing():
        image = leaves(cell.f(z, *cell.inputs))
    shapes = [leaf.shape for leaf in image]
    basis = torch.eye(cell.dim, dtype=torch.float64)[:, None].expand(-1, BATCH, -1)
    parts = basis.split([shape[1:].numel() for shape in shapes], dim=2)
    cotangents = [p.reshape(-1, *leaf.shape).to(leaf.dtype) for p, leaf in zip(parts, image, strict=True)]
    rows = torch.autograd.grad(image, leaves(z), cotangents, is_grads_batched=True)
    return torch.cat([row.double().flatten(2) for row in rows], dim=2).transpose(0, 1).contiguous()


@functools.cache
def _model(name: str, stage: str) -> tuple[nn.Module, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(map(ord, name)))
        model, x = KINDS[name].make()
        model.eval()
        if stage == "trained":
            _train(model, x, KINDS[name].rate)
    return model, x


def _train(model: nn.Module, x: Any, rate: float, num_steps: int = 20, depth: int = 6) -> None:
    """Fit the state after some repetitions to random targets."""
    z, _ = model.encode(*x)
    target = torch.randn(flatten(z).shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(num_steps):
        z, inputs = model.encode(*x)
        for _ in range(depth):
            z = model.layer.cell(z, *inputs)
        loss = (flatten(z, torch.float32) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@functools.cache
def _equilibrium(name: str, stage: str) -> Tensor:
    """Return the (B, D) equilibrium in float64, or a point close to where the cell leads if Newton finds none."""
    model, x = _model(name, stage)
    model = copy.deepcopy(model).double()
    with torch.no_grad():
        z0, inputs = model.encode(*cast(x, torch.float64))
    start = Case(name=name, stage=stage, precision="float64", f=model.layer.cell, z0=z0, inputs=inputs, near=z0)
    z = flatten(z0)
    for _ in range(40):
        z = (z + flatten(start.evaluate(unflatten(z, z0)))) / 2
    guess, identity = z, torch.eye(z.shape[1], dtype=z.dtype)
    for _ in range(12):
        g = flatten(start.evaluate(unflatten(z, z0))) - z
        if (norms(g) <= 1e-14 * norms(z)).all():
            break
        z = z + torch.linalg.solve(identity - dense(start, unflatten(z, z0)), g)
    g = flatten(start.evaluate(unflatten(z, z0))) - z
    is_found = (norms(g) <= 1e-12 * norms(z)) & (norms(z) <= 10 * norms(guess))
    return torch.where(is_found[:, None], z, guess)


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """Return a structure with its floating-point tensors in a dtype, those inside of dataclasses too."""
    if dataclasses.is_dataclass(tree):
        fields = {field.name: cast(getattr(tree, field.name), dtype) for field in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **fields)
    if isinstance(tree, Tensor):
        return tree.detach().to(dtype) if tree.is_floating_point() else tree
    if isinstance(tree, tuple):
        parts = [cast(part, dtype) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree
