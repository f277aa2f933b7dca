import doctest
import functools
import inspect
import pickle
import warnings

import pytest
import torch
from adjoints.cells import EXACT, TIGHT, TanhCell, energy, largest_error, leaf, matrix
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import steadeq._fixed_point
from steadeq import (
    DEQ,
    GMRES,
    Anderson,
    Equilibrium,
    Implicit,
    JacobianRegularizer,
    Picard,
    RandomnessWarning,
    fixed_point,
    frobenius_norm,
    jacobian_penalty,
    operator_norm,
    spectral_radius,
)


class Compiler:
    """Stands in for torch.compile and counts what is compiled and how often it runs."""

    def __init__(self):
        self.num_compilations = 0
        self.calls = []

    def __call__(self, cell, **options):
        self.num_compilations += 1
        return Compiled(cell, self.calls)


class Compiled:
    def __init__(self, cell, calls):
        self._cell, self._calls = cell, calls

    def __call__(self, *arguments):
        self._calls.append(torch.is_grad_enabled())
        return self._cell(*arguments)

    def __len__(self):
        # As torch's OptimizedModule does, so that asking for its truth fails.
        raise TypeError("Cell does not support len()")

    def __reduce__(self):
        raise TypeError("compiled code must not be pickled or copied")


@pytest.fixture
def compiler(monkeypatch):
    compiler = Compiler()
    monkeypatch.setattr(torch, "compile", compiler)
    return compiler


def test_the_cell_is_compiled_once_and_only_when_it_is_asked_for_and_used(compiler):
    layer, x = DEQ(TanhCell(5), compile=True), leaf(3, 5)
    DEQ(TanhCell(5))(x)
    assert compiler.num_compilations == 0
    layer(x)
    count = compiler.num_compilations
    assert count > 0
    for _ in range(3):
        layer(x)
    assert compiler.num_compilations == count


def test_compiled_code_runs_the_solve_and_never_a_recorded_evaluation(compiler):
    layer, x = DEQ(TanhCell(5), solver=TIGHT, adjoint=EXACT, compile=True), leaf(3, 5)
    eq = layer.solve(x)
    energy(eq.z).backward()
    jacobian_penalty(eq).backward()
    assert compiler.calls
    assert not any(compiler.calls)
    # The cell itself: once to attach the graph, once for the penalty, and inside of the compiled calls.
    assert layer.cell.num_calls >= eq.stats.num_evals.max() + 2


def test_the_batch_keeps_its_size_so_that_nothing_is_compiled_anew(compiler):
    sizes = set()

    class Cell(TanhCell):
        def forward(self, z, x):
            sizes.add(z.shape[0])
            return super().forward(z, x)

    x = leaf(16, 5)
    with torch.no_grad():
        x[::2] *= 20
    stats = DEQ(Cell(5), solver=TIGHT, compile=True).solve(x).stats
    assert stats.num_evals.min() < stats.num_evals.max()
    assert sizes == {16}
    DEQ(Cell(5), solver=TIGHT, compile=True, compact=True)(x)
    assert len(sizes) > 1


class PlainCell(nn.Module):
    """Without the counter of the others, whose every value would be compiled anew."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(matrix(dim, 0.8, torch.float32))

    def forward(self, z, x):
        return torch.tanh(z @ self.weight.T + x)


# With the real compiler. What it warns of is its own business.
real = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch")
SOLVER, ADJOINT = Anderson(max_evals=50, tol=1e-6), Implicit(GMRES(tol=1e-6))


@pytest.fixture
def fresh():
    """Forget what was compiled, so that tests do not depend on each other."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Model(nn.Module):
    """A layer between others, as models have it."""

    def __init__(self, **options):
        super().__init__()
        self.embed, self.head = nn.Linear(16, 16), nn.Linear(16, 1)
        self.layer = DEQ(PlainCell(16), solver=SOLVER, adjoint=ADJOINT, **options)

    def forward(self, x):
        x = torch.tanh(self.embed(x))
        eq = self.layer.solve(x)
        return self.head(torch.sin(eq.z)).square().mean(), eq


def gradients(model, x):
    loss, eq = model(x)
    return torch.autograd.grad(loss, list(model.parameters())), eq


@real
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_has_the_gradients_of_the_model_and_is_compiled_once_around_the_solve(backend, fresh):
    model, x = Model(), torch.randn(4, 16)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter)
    for batch in (torch.randn(4, 16), x):
        expected, _ = gradients(model, batch)
        actual, eq = gradients(compiled, batch)
        assert largest_error(actual, expected) < 1e-5
    # The embedding before the solve, the head after it, and nothing of the solve.
    assert counter.frame_count == 2
    assert counter.op_count < 10
    assert eq.backward.converged.all()
    assert (eq.backward.num_evals > 2).all()
    assert (eq.backward.residual > 0).all()


@real
def test_a_layer_with_a_compiled_cell_works_in_a_compiled_model(fresh, monkeypatch):
    model, x = Model(), torch.randn(4, 16)
    model.layer.solver = Picard(max_evals=60, tol=1e-6)
    expected, _ = gradients(model, x)
    model.layer.compiles = True
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    for _ in range(2):
        actual, _ = gradients(torch.compile(model), x)
        assert largest_error(actual, expected) < 1e-4


@real
@pytest.mark.parametrize("compact", [False, True])
def test_the_rounding_of_compiled_code_is_not_taken_for_randomness(compact, fresh):
    cell = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh())
    x = torch.randn(32, 64)
    f = lambda z, x: torch.tanh(cell(z) + x)  # noqa: E731
    f_solve = torch.compile(f, backend="aot_eager_decomp_partition", dynamic=True)
    for dtype in (None, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None), warnings.catch_warnings():
            warnings.simplefilter("error", RandomnessWarning)
            fixed_point(f, torch.zeros_like(x), x, f_solve=f_solve, compact=compact, solver=SOLVER)


@real
def test_penalties_and_spectra_step_out_of_the_graph_too(fresh):
    model, x = Model(), torch.randn(4, 16)
    cell = model.layer.cell
    regularizer = JacobianRegularizer(weight=0.5)

    def measure(x):
        torch.manual_seed(0)
        # Beyond zero, where tanh has a second derivative.
        z = torch.tanh(model.embed(x))
        eq = Equilibrium.at(cell, z, x)
        spectra = [estimate(eq).value for estimate in (frobenius_norm, spectral_radius, operator_norm)]
        return jacobian_penalty(eq), regularizer(eq, step=3), *spectra

    def pair(measure):
        values = measure(x)
        return [*values, *(torch.autograd.grad(value, cell.weight)[0] for value in values[:2])]

    expected = pair(measure)
    actual = pair(torch.compile(measure, backend="aot_eager"))
    assert expected[-1].abs().max() > 0
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


@real
def test_one_graph_of_all_is_refused_with_a_reason(fresh):
    with pytest.raises(Exception, match=r"DEQ\.solve runs outside of compiled graphs.*DEQ\(cell, compile=True\)"):
        torch.compile(Model(), backend="eager", fullgraph=True)(torch.randn(4, 16))
    penalty = torch.compile(lambda z: jacobian_penalty(Equilibrium.at(torch.sin, z)), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="jacobian_penalty runs outside of compiled graphs"):
        penalty(torch.ones(2, 3))


@real
@pytest.mark.parametrize("use", ["layer", "function"])
def test_a_compiled_cell_runs_compiled_and_has_the_gradients_of_the_cell(use, fresh):
    cell, x = PlainCell(16), leaf(4, 16, dtype=torch.float32)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(cell, backend=counter)
    results = []
    for f in (cell, compiled):
        options = {"solver": SOLVER, "adjoint": ADJOINT}
        z = DEQ(f, **options)(x) if use == "layer" else fixed_point(f, torch.zeros_like(x), x, **options).z
        results.append([z.detach(), *torch.autograd.grad(energy(z), [cell.weight, x])])
    assert largest_error(results[1], results[0]) < 1e-5
    # Once for the evaluations without a gradient, once for the one with it.
    assert counter.frame_count == 2


@real
def test_compiled_code_that_cannot_be_differentiated_repeatedly_is_refused(fresh):
    cell, x = PlainCell(16), leaf(4, 16, dtype=torch.float32)
    twice = torch.compile(lambda z, x: torch.sin(cell(cell(z, x), x)), backend="aot_eager")
    # After a first backward pass of the usual kind the compiler reuses what it has saved.
    twice(leaf(4, 16, dtype=torch.float32), x).sum().backward()
    z = fixed_point(twice, torch.zeros_like(x), x).z
    with pytest.raises(RuntimeError, match=r"^f runs compiled code, which .* pass the cell itself .* compile=True\)"):
        z.sum().backward()


@real
def test_what_needs_one_derivative_takes_compiled_code(fresh):
    cell, x = PlainCell(16), torch.randn(4, 16)
    compiled = torch.compile(cell, backend="aot_eager")
    values = []
    for f in (compiled, cell):
        eq, generator = Equilibrium.at(f, x, x), torch.Generator().manual_seed(0)
        with torch.no_grad():
            penalty = jacobian_penalty(eq, generator=generator)
        spectrum = [measure(eq, generator=generator).value for measure in (spectral_radius, frobenius_norm)]
        values.append([penalty, *spectrum])
    torch.testing.assert_close(*values)


def test_the_functions_keep_their_faces():
    estimates = (jacobian_penalty, frobenius_norm, spectral_radius, operator_norm)
    for function in (fixed_point, *estimates, DEQ.forward, DEQ.solve):
        assert function.__doc__
        assert "args" not in inspect.signature(function).parameters
    assert pickle.loads(pickle.dumps(fixed_point)) is fixed_point
    assert list(inspect.signature(fixed_point).parameters)[:3] == ["f", "z0", "inputs"]
    names = {test.name for test in doctest.DocTestFinder().find(steadeq._fixed_point) if test.examples}
    assert names == {"steadeq._fixed_point.fixed_point"}
