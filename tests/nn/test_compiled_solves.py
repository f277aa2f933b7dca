"""Compiled solves: as the eager ones to rounding, without graph breaks, code of a few steps for every budget."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from steadeq import (
    DEQ,
    GMRES,
    Anderson,
    Broyden,
    Implicit,
    OneStep,
    Picard,
    Shine,
    Unrolled,
    fixed_point,
)
from steadeq.nn import VariationalDropout


class TanhCell(nn.Module):
    """A contraction."""

    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim, dtype=torch.float64)
        with torch.no_grad():
            self.linear.weight.mul_(0.8 / torch.linalg.matrix_norm(self.linear.weight, 2))

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


@pytest.fixture
def compiler(monkeypatch):
    """Compile with everything but the last step, the making of machine code; count the graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compile_as_usual = torch.compile

    def compile_(f, *, options=None, **kwargs):
        # Options are those of the compiler that makes machine code.
        return compile_as_usual(f, backend=counter, **kwargs)

    monkeypatch.setattr(torch, "compile", compile_)
    yield counter
    torch._dynamo.reset()


def num_graphs(compiler):
    """Return of how many graphs code was made; the compiler counts empty ones, too."""
    return sum(len(graph.graph.nodes) > 0 for graph in compiler.graphs)


@pytest.mark.parametrize(
    "kind", [Anderson, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (Picard, Broyden))]
)
def test_code_of_four_steps_and_of_one_serves_every_budget_and_tolerance(kind, compiler):
    cell, x = TanhCell(4), torch.randn(6, 4, dtype=torch.float64)
    layer, eager = DEQ(cell, compile=True), DEQ(cell, compact=False)
    for max_evals, tol in ((10, 0), (9, 0), (30, 1e-6), (20, 1e-3)):
        solver = kind(max_evals=max_evals, tol=tol)
        with torch.no_grad():
            found, expected = layer.solve(x, solver=solver), eager.solve(x, solver=solver)
        torch.testing.assert_close(found.z, expected.z, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(found.stats.residual, expected.stats.residual, rtol=1e-4, atol=1e-12)
        assert torch.equal(found.stats.num_evals, expected.stats.num_evals)
        assert torch.equal(found.stats.status, expected.stats.status)
        assert found.stats.trace.shape == expected.stats.trace.shape
    assert num_graphs(compiler) == 2


def test_a_plain_function_is_compiled_whole(compiler):
    # Of a model elsewhere in the process, which draws masks.
    other = VariationalDropout(0.5)
    assert other.is_active
    weight, x = 0.3 * torch.randn(4, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)

    def f(z, x):
        return torch.tanh(z @ weight + x)

    solver = Picard(max_evals=14, tol=0)
    with torch.no_grad():
        found = fixed_point(f, torch.zeros_like(x), x, solver=solver, compile=True)
    # Code of four steps and of one: of single evaluations there would be one kind.
    assert num_graphs(compiler) == 2
    torch.testing.assert_close(found.z, fixed_point(f, torch.zeros_like(x), x, solver=solver).z)


def test_masks_that_a_function_hides_are_refused_by_the_compiler_and_held(compiler):
    hidden, x = [VariationalDropout(0.5)], torch.randn(6, 4, dtype=torch.float64)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="only single evaluations"):
        eq = fixed_point(
            lambda z, x: hidden[0](0.2 * torch.tanh(z) + x),
            torch.zeros_like(x),
            x,
            solver=Picard(tol=1e-6),
            compile=True,
        )
    # With a mask for each evaluation there would be no fixed point.
    assert eq.stats.converged.all()


class Asks(nn.Module):
    """A cell that asks for the value of a tensor."""

    def forward(self, z, x):
        return 0.5 * z + x if x.sum() > 0 else 0.4 * z + x


def test_a_cell_that_cannot_be_one_graph_is_said_so_and_still_solved(compiler):
    x = torch.ones(3, 4)
    layer = DEQ(Asks(), solver=Anderson(max_evals=12, tol=1e-5), compile=True)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="compiles only single evaluations"):
        torch.testing.assert_close(layer(x), 2 * x)


@pytest.mark.parametrize("kind", [Picard, pytest.param(Anderson, marks=pytest.mark.slow)])
def test_nothing_is_compiled_anew_over_steps_and_a_batch_of_any_size_once_more(kind, compiler):
    cell = TanhCell(4)
    layer = DEQ(cell, solver=kind(max_evals=4, tol=0), compile=True)
    optimizer = torch.optim.SGD(cell.parameters(), lr=1e-2)
    for size in (6, 6, 5, 3, 7, 6):
        layer(torch.randn(size, 4, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    # One step, for batches of six and then of any size; the compiler also tells apart whether weights had gradients.
    assert num_graphs(compiler) <= 3


EXACT = Implicit(GMRES(tol=1e-12))
ADJOINTS = [(Picard, EXACT), (Picard, Unrolled(last=3))]
SLOW_ADJOINTS = [
    *((Picard, adjoint) for adjoint in (OneStep(), Unrolled())),
    *((Anderson, adjoint) for adjoint in (EXACT, OneStep(), Unrolled(), Unrolled(last=3))),
    *((Broyden, adjoint) for adjoint in (EXACT, OneStep(), Shine(), Unrolled(), Unrolled(last=3))),
]


@pytest.mark.parametrize(
    ("kind", "adjoint"),
    [*ADJOINTS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_ADJOINTS)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_gradients_are_those_of_the_eager_solve(kind, adjoint, compiler):
    solver = kind(max_evals=6, tol=0)
    gradients = []
    for compile in (False, True):
        torch.manual_seed(0)
        cell, x = TanhCell(4), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        DEQ(cell, solver=solver, adjoint=adjoint, compile=compile)(x).square().sum().backward()
        gradients.append([x.grad, *(parameter.grad for parameter in cell.parameters())])
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-9)


class Pair(nn.Module):
    """A cell of two states of different shapes, with inputs in a dict."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, z, x):
        a, b = z
        return torch.tanh(self.first(a) + x["a"] + b.mean(dim=(1, 2))[:, None]), torch.tanh(self.second(b) + x["b"])


@torch.no_grad()
def test_nested_states_and_inputs(compiler):
    cell, x = Pair(), {"a": torch.randn(4, 3), "b": torch.randn(4, 2, 5)}
    z0 = (torch.zeros(4, 3), torch.zeros(4, 2, 5))
    solver = Anderson(max_evals=4, tol=0)
    eager = fixed_point(cell, z0, x, solver=solver)
    found = fixed_point(cell, z0, x, solver=solver, compile=True)
    for one, other in zip(found.z, eager.z, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    fixed_point(cell, z0, x, solver=solver, compile=True)
    assert num_graphs(compiler) == 1  # of one step


def test_autocast_reaches_the_cell(compiler):
    cell, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    solver = Picard(max_evals=6, tol=0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        eager = fixed_point(lambda z, x: cell(z) + x, torch.zeros_like(x), x, solver=solver)
        found = fixed_point(lambda z, x: cell(z) + x, torch.zeros_like(x), x, solver=solver, compile=True)
    torch.testing.assert_close(found.z, eager.z, rtol=2e-2, atol=2e-2)
    # Code of four steps and of one.
    assert num_graphs(compiler) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch")
@pytest.mark.parametrize("kind", [Picard, Anderson, Broyden])
def test_machine_code_gives_the_same(kind):
    torch._dynamo.reset()
    cell, x = TanhCell(8).float(), torch.randn(16, 8)
    solver = kind(max_evals=8, tol=0)
    gradients = []
    for compile in (False, True):
        cell.zero_grad()
        z = DEQ(cell, solver=solver, compile=compile)(x)
        z.square().sum().backward()
        gradients.append([z.detach(), *(parameter.grad.clone() for parameter in cell.parameters())])
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
