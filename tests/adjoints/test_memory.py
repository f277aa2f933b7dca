import pytest
import torch
from adjoints.cells import TanhCell, leaf
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from steadeq import (
    Anderson,
    Broyden,
    Implicit,
    NewtonKrylov,
    OneStep,
    Phantom,
    Picard,
    Reversible,
    Unrolled,
    fixed_point,
)

SOLVERS = {
    "picard": lambda max_evals: Picard(max_evals=max_evals, tol=0.0),
    "anderson": lambda max_evals: Anderson(max_evals=max_evals, tol=0.0, memory=30),
    "broyden": lambda max_evals: Broyden(max_evals=max_evals, tol=0.0, memory=30),
    "newton": lambda max_evals: NewtonKrylov(max_evals=max_evals, tol=0.0, memory=30),
}


class Held(TorchDispatchMode):
    """Knows how much of what was allocated inside of it is still alive."""

    def __init__(self):
        super().__init__()
        self._storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._note((args, kwargs), is_new=False)
        result = func(*args, **kwargs)
        self._note(result, is_new=True)
        return result

    def _note(self, tree, is_new):
        for tensor in tree_leaves(tree):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._storages.setdefault(StorageWeakRef(storage), storage.nbytes() if is_new else 0)

    @property
    def num_bytes(self):
        return sum(num_bytes for storage, num_bytes in self._storages.items() if not storage.expired())


@pytest.mark.parametrize(
    ("name", "adjoint"),
    [
        *((name, Implicit()) for name in SOLVERS),
        *(("anderson", adjoint) for adjoint in (OneStep(), Phantom(), Unrolled())),
        ("damped", Reversible()),
    ],
    ids=repr,
)
def test_what_lives_until_backward_does_not_grow_with_the_number_of_evaluations(name, adjoint):
    cell, x = TanhCell(128, 0.99), leaf(4, 128)
    held = []
    for max_evals in (5, 30):
        with Held() as allocated:
            solver = Picard(max_evals=max_evals, tol=0.0, damping=0.5) if name == "damped" else SOLVERS[name](max_evals)
            eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint)
        held.append(allocated.num_bytes)
        assert eq.stats.num_evals.max() >= min(max_evals, 20)
        del eq
    one_state = x.numel() * x.element_size()
    if isinstance(adjoint, Unrolled):
        # The control: growth is noticed.
        assert held[1] > 4 * held[0] > one_state
    else:
        # The trace, one number per evaluation and sample, is all that may.
        assert held[1] - held[0] < one_state
        # The graph of one evaluation, the state and the trace.
        assert held[1] < 10 * one_state


def test_nothing_stays_when_the_equilibrium_is_dropped():
    cell, x = TanhCell(128), leaf(4, 128)
    with Held() as allocated:
        eq = fixed_point(cell, torch.zeros_like(x), x, solver=Anderson(tol=0.0))
        eq.z.sum().backward()
    gradients = sum(source.grad.numel() * source.grad.element_size() for source in (*cell.parameters(), x))
    assert allocated.num_bytes > gradients
    del eq
    assert allocated.num_bytes == gradients
