"""What a solve returns: the map, the state, the inputs, and how it went."""

import gc
import sys
import weakref

import pytest
import torch
from adjoints.cells import ADJOINTS, TIGHT, TanhCell, energy, leaf
from torch import nn

import steadeq
from steadeq import (
    DEQ,
    GMRES,
    Broyden,
    ConvergenceError,
    ConvergenceWarning,
    Equilibrium,
    Implicit,
    JacobianRegularizer,
    Picard,
    SolveStats,
    Status,
    Unrolled,
    diagnose,
    fixed_point,
    frobenius_norm,
    jacobian_penalty,
    operator_norm,
    spectral_radius,
)
from steadeq.jacobian import Linear


def test_it_holds_the_map_the_state_the_inputs_and_the_stats():
    cell, x = TanhCell(4), leaf(3, 4)
    shift = {"shift": torch.ones(3, 4, dtype=torch.float64)}
    f = lambda z, x, shift: cell(z, x + shift["shift"])  # noqa: E731
    eq = fixed_point(f, torch.zeros_like(x), x, shift)
    assert isinstance(eq, Equilibrium)
    assert eq.f is f
    assert eq.inputs[0] is x
    assert eq.inputs[1] is shift
    assert isinstance(eq.stats, SolveStats)
    torch.testing.assert_close(f(eq.z, *eq.inputs), eq.z, rtol=1e-2, atol=1e-3)
    assert eq.backward is None


def test_the_map_is_the_callers_own_under_autocast_and_with_another_for_the_solve():
    cell = torch.nn.Tanh()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eq = fixed_point(cell, torch.ones(2, 3), f_solve=torch.tanh)
    assert eq.f is cell


def test_one_of_a_state_that_was_computed_elsewhere_has_no_stats():
    def f(z, x):
        pytest.fail("f was called")

    z, x = torch.ones(2, 3), torch.zeros(2, 3)
    eq = Equilibrium.at(f, z, x)
    assert eq.f is f
    assert eq.z is z
    assert eq.inputs == (x,)
    assert eq.stats is None
    assert eq.backward is None


def test_one_that_converged_is_returned_and_one_that_failed_raises():
    eq = fixed_point(torch.cos, torch.zeros(2, 3))
    assert eq.raise_if_failed() is eq
    short = fixed_point(torch.cos, torch.zeros(2, 3), solver=Picard(max_evals=2))
    with pytest.raises(ConvergenceError, match=r"^2 of 2 samples MAX_EVALS: .*max_evals.*Largest relative residual: 8"):
        short.raise_if_failed()


def test_whether_a_given_state_failed_is_not_known():
    with pytest.raises(ValueError, match=r"Equilibrium\.at.*no status to check\.$"):
        Equilibrium.at(torch.cos, torch.zeros(2, 3)).raise_if_failed()


def test_it_prints_how_the_solve_went():
    eq = fixed_point(torch.cos, torch.zeros(2, 3))
    assert repr(eq) == f"Equilibrium({eq.stats})" == str(eq)
    assert repr(eq).startswith("Equilibrium(forward: 2 of 2 samples converged in 5 evaluations")
    assert repr(Equilibrium.at(torch.cos, torch.zeros(2, 3))) == "Equilibrium(given state)"


def test_stats_of_what_was_not_measured_can_be_printed():
    stats = fixed_point(torch.cos, torch.zeros(2, 3)).stats
    some = SolveStats.not_measured(2, 3, like=stats.residual)
    assert some.num_evals.dtype == some.status.dtype == torch.int64
    assert some.status.tolist() == [Status.NOT_MEASURED] * 2
    assert str(some) == "forward: 2 samples, 3 evaluations, residual not measured"
    assert some.failures() == ""


@pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)
def test_dropping_it_frees_the_graph_without_the_garbage_collector(adjoint):
    # The graph keeps where backward leaves its stats, and the equilibrium keeps the graph: the two are no cycle.
    class Witness:
        pass

    cell, x = TanhCell(5), leaf(3, 5)

    def step(is_second_order):
        # Something that only f holds, and so dies with the graph and the equilibrium.
        witness = Witness()
        f = lambda z, x: (witness, cell(z, x))[1]  # noqa: E731
        eq = fixed_point(f, torch.zeros_like(x), x, solver=Broyden(max_evals=50, tol=1e-10), adjoint=adjoint)
        if is_second_order:
            (slope,) = torch.autograd.grad(energy(eq.z), x, create_graph=True)
            torch.autograd.grad(slope.square().sum(), cell.weight)
        else:
            energy(eq.z).backward(retain_graph=True)
        assert (eq.backward is None) == (type(adjoint) is Unrolled)
        return weakref.ref(witness), weakref.ref(eq)

    gc.collect()
    gc.disable()
    try:
        for is_second_order in (False, True) if isinstance(adjoint, (Implicit, Unrolled)) else (False,):
            assert [reference() for reference in step(is_second_order)] == [None, None]
    finally:
        gc.enable()


ESTIMATES = [jacobian_penalty, frobenius_norm, operator_norm, spectral_radius]


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_estimates_of_a_solved_and_of_a_given_equilibrium_agree(estimate):
    layer, x = DEQ(TanhCell(5), solver=TIGHT), leaf(3, 5)
    eq = layer.solve(x)
    given = Equilibrium.at(layer.cell, eq.z, x)
    results = [estimate(one, generator=torch.Generator().manual_seed(0)) for one in (eq, given)]
    torch.testing.assert_close(*(getattr(result, "value", result) for result in results), rtol=0, atol=0)


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize(
    ("given", "kind"),
    [(torch.cos, "builtin_function_or_method"), (torch.zeros(2, 3), "Tensor"), (None, "NoneType"), ((), "tuple")],
    ids=["map", "state", "nothing", "tuple"],
)
def test_estimates_refuse_what_is_no_equilibrium(estimate, given, kind):
    with pytest.raises(TypeError, match=rf"^eq is a {kind}; it must be an Equilibrium\. .*Equilibrium\.at\(.*\.$"):
        estimate(given)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_recurrent_cells_which_take_the_input_first_are_refused_wherever_they_are_given(kind):
    cell, z, x = kind(3, 3), torch.zeros(2, 3), torch.ones(2, 3)
    for give in (lambda: DEQ(cell), lambda: fixed_point(cell, z, x), lambda: Equilibrium.at(cell, z, x)):
        with pytest.raises(TypeError, match=r"Cell takes the input first.*lambda z, x: cell\(x, z\)"):
            give()


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (torch.zeros(2, 3), r"^f is a Tensor; it must be a function or a module"),
        (nn.Tanh, r"^f is <class .*Tanh'>; it must be .*Create one first, as in Tanh\(\.\.\.\)\.$"),
        (nn.GRU(3, 3), r"^GRU reads a whole sequence.*Use GRUCell"),
        (nn.TransformerEncoderLayer(2, 1), r"takes a mask as its second argument.*`self\.layer\(z \+ x\)`\.$"),
        (
            DEQ(nn.Linear(3, 3)),
            r"^f is a layer that solves for a state of its own, a DEQ.*pass the map itself, `layer\.cell`\.$",
        ),
    ],
)
def test_what_is_no_map_is_refused_wherever_it_is_given(f, message):
    z, x = torch.zeros(2, 3), torch.ones(2, 3)
    for give in (fixed_point, Equilibrium.at, diagnose):
        with pytest.raises(TypeError, match=message):
            give(f, z, x)


def test_a_layer_that_takes_the_state_as_an_input_is_a_map():
    class Inner(nn.Module):
        def forward(self, w, z, x):
            return 0.2 * torch.tanh(w + z) + x

    assert fixed_point(DEQ(Inner()), torch.zeros(2, 3), torch.ones(2, 3)).stats.converged.all()


def test_a_recurrent_cell_with_a_forward_of_its_own_is_taken():
    class StateFirst(nn.GRUCell):
        def forward(self, z, x):
            return super().forward(x, z)

    DEQ(StateFirst(3, 3))(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "anderson"}, r"^solver is 'anderson'; it must be a steadeq solver, such as Anderson\(\)\.$"),
        ({"solver": Picard}, r"^solver is <class .*Picard'>; it must be"),
        ({"solver": GMRES()}, r"solves linear systems only"),
        ({"adjoint": Picard()}, r"^adjoint is Picard\(.*it must be a steadeq adjoint, such as Implicit\(\)\.$"),
    ],
)
def test_what_is_no_solver_or_adjoint_is_refused_also_when_a_layer_is_made(options, message):
    for make in (DEQ, lambda f, **options: fixed_point(f, torch.zeros(1, 1), **options)):
        with pytest.raises(TypeError, match=message):
            make(nn.Tanh(), **options)


def test_a_module_without_room_for_the_inputs_is_refused_in_a_sentence():
    x = torch.ones(2, 3)
    for cell in (nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())):
        with pytest.raises(
            TypeError, match=r"takes 1 argument, but is called with the state and 1 input\. The map needs"
        ):
            DEQ(cell)(x)
    fixed_point(nn.Linear(3, 3), 0 * x)  # without inputs it is a map like any other


def test_a_class_instead_of_a_cell_is_refused():
    with pytest.raises(TypeError, match=r"cell is <class .*Tanh'>; it must be a module"):
        DEQ(nn.Tanh)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_an_input_of_another_shape_than_the_state_is_explained():
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        DEQ(TanhCell(3))(torch.ones(2, 5))
    assert "zeros like the first input, torch.float32 of shape (2, 5)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("x", "found"), [(torch.ones(2, 3, dtype=torch.long), r"torch\.int64 of shape \(2, 3\)"), ([1.0], "float")]
)
def test_an_input_that_no_state_can_be_like_is_refused(x, found):
    with pytest.raises(TypeError, match=rf"zeros like the first input, but that is {found}; pass floating-point"):
        DEQ(TanhCell(3))(x)


def test_the_advice_of_a_warning_fits_the_status():
    x = torch.full((2, 3), torch.nan, dtype=torch.float64)
    with pytest.warns(ConvergenceWarning, match=r"by Anderson\(max_evals=30, tol=0\.001\) .*check the inputs"):
        DEQ(TanhCell(3))(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JacobianRegularizer(0.3), r"keyword arguments only, as in JacobianRegularizer\(weight=0\.3\)\.$"),
        (lambda: JacobianRegularizer(wieght=0.3), r"no option 'wieght'; it has weight, .* Did you mean 'weight'\?$"),
        (lambda: Linear(2.0), r"^Linear takes keyword arguments only"),
    ],
)
def test_options_without_a_name_or_with_a_wrong_one_are_told_in_a_sentence(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_block_that_takes_and_returns_more_than_the_state_is_called_as_one_says():
    weight, mask = torch.randn(4, 4, requires_grad=True), torch.tensor([1.0, 1.0, 0.0, 1.0])

    def block(z, x, mask):
        return torch.tanh(z @ weight + x) * mask, z.norm(), None

    z, x = torch.randn(2, 3, 4)
    whole = Equilibrium.at(block, z, x, evaluate=lambda block, z, x: block(z, x, mask)[0])
    plain = Equilibrium.at(lambda z, x: block(z, x, mask)[0], z, x)
    assert steadeq.residual_penalty(whole) == steadeq.residual_penalty(plain)
