import itertools

import pytest
import torch
from adjoints.cells import ADJOINTS, TanhCell, leaf

from steadeq import Anderson, Broyden, Implicit, NewtonKrylov, Picard, Unrolled, fixed_point

each_adjoint = pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)
BROYDEN = Broyden(max_evals=12, tol=1e-3)


def run(cell, x, **kwargs):
    return fixed_point(cell, torch.zeros_like(x), x, **kwargs)


@pytest.mark.parametrize(
    ("solver", "adjoint"),
    [
        *((BROYDEN, adjoint) for adjoint in ADJOINTS.values()),
        *itertools.product((Picard(tol=1e-6), Anderson(tol=1e-6), NewtonKrylov(tol=1e-6)), (Implicit(), Unrolled())),
    ],
    ids=repr,
)
def test_state_and_stats_are_the_same_bit_for_bit_with_and_without_gradients(solver, adjoint):
    cell, x = TanhCell(40, 0.9, torch.float32), leaf(20, 40, dtype=torch.float32)
    recorded = run(cell, x, solver=solver, adjoint=adjoint)
    assert recorded.z.requires_grad
    assert not recorded.stats.residual.requires_grad
    assert not recorded.stats.trace.requires_grad
    with torch.no_grad():
        plain = run(cell, x, solver=solver, adjoint=adjoint)
    with torch.inference_mode():
        inferred = run(cell, x, solver=solver, adjoint=adjoint)
    for other in (plain, inferred):
        assert torch.equal(recorded.z, other.z)
        assert torch.equal(recorded.stats.num_evals, other.stats.num_evals)
        assert torch.equal(recorded.stats.residual, other.stats.residual)
        assert torch.equal(recorded.stats.trace, other.stats.trace)


@each_adjoint
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_without_grad_mode(adjoint, mode):
    cell, x = TanhCell(5), leaf(3, 5)

    def refuse(tensor):
        raise AssertionError("something was saved for backward")

    with mode(), torch.autograd.graph.saved_tensors_hooks(refuse, refuse):
        eq = run(cell, x, solver=BROYDEN, adjoint=adjoint)
    assert eq.z.grad_fn is None
    assert not eq.z.requires_grad
    assert eq.backward is None


@each_adjoint
def test_the_extra_call_belongs_to_every_adjoint_but_unrolling(adjoint):
    cell, x = TanhCell(5), leaf(3, 5)
    run(cell, x, solver=BROYDEN, adjoint=adjoint)
    before = cell.num_calls
    eq = run(cell, x, solver=BROYDEN, adjoint=adjoint)
    extra = 0 if isinstance(adjoint, Unrolled) else 1
    assert cell.num_calls - before == eq.stats.num_evals.max() + extra
    eq.z.sum().backward()
    assert cell.num_calls - before == eq.stats.num_evals.max() + extra


@each_adjoint
def test_a_state_that_depends_on_nothing_trainable_requires_no_gradient(adjoint):
    cell, x = TanhCell(5).requires_grad_(False), torch.randn(3, 5, dtype=torch.float64)
    eq = run(cell, x, solver=BROYDEN, adjoint=adjoint)
    assert eq.z.grad_fn is None
    assert not eq.z.requires_grad
