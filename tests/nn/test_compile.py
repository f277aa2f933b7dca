import copy
import pickle

import pytest
import torch
from adjoint.cells import EXACT, TIGHT, TanhCell, energy, largest_error, leaf, matrix
from torch import nn

from steadeq import DEQ, GMRES, Anderson, Implicit, Unrolled, jacobian_penalty


class Compiler:
    """Stands in for torch.compile and counts what is compiled and how often it runs."""

    def __init__(self):
        self.num_compilations = 0
        self.calls = []

    def __call__(self, cell):
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


def test_nothing_is_compiled_unless_asked_for(compiler):
    x = leaf(3, 5)
    DEQ(TanhCell(5))(torch.zeros_like(x), x)
    assert compiler.num_compilations == 0


def test_the_cell_is_compiled_once_and_only_when_it_is_used(compiler):
    layer, x = DEQ(TanhCell(5), compile=True), leaf(3, 5)
    assert compiler.num_compilations == 0
    for _ in range(3):
        layer(torch.zeros_like(x), x)
    assert compiler.num_compilations == 1


def test_compiled_code_runs_the_solve_and_never_a_recorded_evaluation(compiler):
    layer, x = DEQ(TanhCell(5), solver=TIGHT, adjoint=EXACT, compile=True), leaf(3, 5)
    z, solution = layer(torch.zeros_like(x), x)
    energy(z).backward()
    jacobian_penalty(layer.cell, z, x.detach()).backward()
    assert compiler.calls == [False] * int(solution.num_evals.max())
    # The cell itself: once to attach the graph, once for the penalty, and inside of the compiled calls.
    assert layer.cell.num_calls == solution.num_evals.max() + 2


def test_unrolling_records_the_cell_itself(compiler):
    layer, x = DEQ(TanhCell(5), adjoint=Unrolled(), compile=True), leaf(3, 5)
    layer(torch.zeros_like(x), x)[0].sum().backward()
    assert compiler.calls == []
    with torch.no_grad():
        layer(torch.zeros_like(x), x)
    assert compiler.calls


def test_the_batch_keeps_its_size_so_that_nothing_is_compiled_anew(compiler):
    sizes = set()

    class Cell(TanhCell):
        def forward(self, z, x):
            sizes.add(z.shape[0])
            return super().forward(z, x)

    x = leaf(16, 5)
    with torch.no_grad():
        x[::2] *= 20
    _, solution = DEQ(Cell(5), solver=TIGHT, compile=True)(torch.zeros_like(x), x)
    assert solution.num_evals.min() < solution.num_evals.max()
    assert sizes == {16}
    DEQ(Cell(5), solver=TIGHT, compile=True, compact=True)(torch.zeros_like(x), x)
    assert len(sizes) > 1


def test_a_copy_compiles_its_own_cell(compiler):
    layer, x = DEQ(TanhCell(5), compile=True), leaf(3, 5)
    layer(torch.zeros_like(x), x)
    for number, twin in enumerate((copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))), start=2):
        twin(torch.zeros_like(x), x)
        assert compiler.num_compilations == number
        assert twin.cell.num_calls > layer.cell.num_calls


class PlainCell(nn.Module):
    """Without the counter of the others, whose every value would be compiled anew."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(matrix(dim, 0.8, torch.float32))

    def forward(self, z, x):
        return torch.tanh(z @ self.weight.T + x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_cell_gives_the_values_and_gradients_of_the_cell():
    cell = PlainCell(16)
    x = leaf(4, 16, dtype=torch.float32)
    solver, adjoint = Anderson(max_evals=50, tol=1e-6), Implicit(GMRES(tol=1e-6))
    results = []
    for is_compiled in (False, True):
        layer = DEQ(cell, solver=solver, adjoint=adjoint, compile=is_compiled)
        z, solution = layer(torch.zeros_like(x), x)
        assert solution.converged.all()
        sources = [*cell.parameters(), x]
        results.append([z.detach(), *torch.autograd.grad(energy(z), sources)])
        assert list(layer.state_dict()) == ["cell.weight"]
    assert largest_error(results[1], results[0]) < 1e-4
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.cell.weight.mul_(0.5)
        assert not torch.allclose(twin(torch.zeros_like(x), x)[0], layer(torch.zeros_like(x), x)[0])
