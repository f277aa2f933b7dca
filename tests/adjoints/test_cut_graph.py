"""A graph that is cut inside of f is an error; a map that does not depend on z has a Jacobian of zero."""

import pytest
import torch
from adjoints.cells import EXACT, TIGHT, TanhCell, leaf

from steadeq import (
    DEQ,
    Equilibrium,
    OneStep,
    Phantom,
    fixed_point,
    frobenius_norm,
    jacobian_penalty,
    operator_norm,
    spectral_radius,
)

CUT = "The graph between z and f\\(z\\) is cut"
MEASURES = [jacobian_penalty, frobenius_norm, spectral_radius, operator_norm]


def without_grad(cell, z, x):
    with torch.no_grad():
        return cell(z, x)


CUTS = {
    "detach": lambda cell, z, x: cell(z.detach(), x),
    "data": lambda cell, z, x: cell(z.data, x),
    "numpy": lambda cell, z, x: cell(torch.from_numpy(z.detach().numpy()), x),
    "no_grad": without_grad,
    "detached image": lambda cell, z, x: cell(z, x).detach(),
}
each_cut = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


def bound(cut, cell):
    return lambda z, x: cut(cell, z, x)


@each_cut
def test_the_implicit_gradient_refuses_a_cut_graph(cut):
    cell, x = TanhCell(5), leaf(3, 5)
    with pytest.raises(RuntimeError, match=CUT):
        fixed_point(bound(cut, cell), torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT).z.sum().backward()


@each_cut
@pytest.mark.parametrize("measure", MEASURES)
def test_penalties_and_spectra_refuse_a_cut_graph(cut, measure):
    x = torch.randn(3, 5, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=CUT):
        measure(Equilibrium.at(bound(cut, TanhCell(5)), x, x))


def test_an_image_without_any_graph_is_refused_by_the_solve_itself():
    # Or else the model would train without its cell.
    class Cell(TanhCell):
        def forward(self, z, x):
            with torch.no_grad():
                return super().forward(z, x)

    x = leaf(3, 5)
    layer = DEQ(Cell(5))
    for adjoint in (EXACT, OneStep(), Phantom()):
        with pytest.raises(RuntimeError, match=r"cut.*torch\.no_grad\(\)"):
            layer(x, adjoint=adjoint)
    with torch.no_grad():
        layer(x)


def test_one_step_needs_no_path_to_the_state():
    cell, x = TanhCell(5), leaf(3, 5)
    expected, actual = (
        torch.autograd.grad(fixed_point(f, torch.zeros_like(x), x, solver=TIGHT, adjoint=OneStep()).z.sum(), x)
        for f in (cell, lambda z, x: cell(z.detach(), x))
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("lost", [0, 1])
def test_each_leaf_of_a_state_is_looked_at(lost):
    def f(z, x):
        z = [leaf.detach() if position == lost else leaf for position, leaf in enumerate(z)]
        return torch.tanh(0.3 * z[0] + 0.2 * z[1] + x), torch.tanh(0.5 * z[1] - 0.1 * z[0])

    x = leaf(3, 4)
    z0 = torch.zeros_like(x), torch.ones_like(x)
    with pytest.raises(RuntimeError, match=CUT):
        fixed_point(f, z0, x, solver=TIGHT, adjoint=EXACT).z[0].sum().backward()
    with pytest.raises(RuntimeError, match=CUT):
        jacobian_penalty(Equilibrium.at(f, z0, x.detach()))


def test_a_leaf_that_f_does_not_use_has_columns_of_zero():
    def f(z, x):
        return torch.tanh(0.3 * z["a"] + x), 2 * z["a"]

    x = leaf(3, 4)
    z0 = {"a": torch.zeros_like(x), "b": torch.ones_like(x)}
    value = fixed_point(lambda z, x: dict(zip("ab", f(z, x), strict=True)), z0, x, solver=TIGHT, adjoint=EXACT).z
    (actual,) = torch.autograd.grad(value["b"].sum(), x)
    only = fixed_point(lambda z, x: f({"a": z}, x)[0], z0["a"], x, solver=TIGHT, adjoint=EXACT).z
    (expected,) = torch.autograd.grad(2 * only.sum(), x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_map_that_does_not_depend_on_the_state_has_a_jacobian_of_zero(measure):
    x = torch.randn(3, 5)
    for noise in (0.0, 1e-3):
        result = measure(Equilibrium.at(lambda z, x, noise=noise: 2 * x + noise * torch.randn_like(x), x, x))
        assert torch.equal(getattr(result, "value", result), torch.zeros(() if measure is jacobian_penalty else 3))


def test_a_constant_with_a_path_is_the_way_out():
    # Values that jump, of which autograd knows no path, and a Jacobian that is meant to be zero.
    x = torch.randn(4, 2000)
    f = lambda z, x: torch.where(z + x > 0, 1.0, -1.0)  # noqa: E731
    value = frobenius_norm(Equilibrium.at(lambda z, x: f(z, x) + 0 * z, x, x)).value
    assert torch.equal(value, torch.zeros(4))


def test_a_whole_graph_costs_no_evaluation():
    cell, x = TanhCell(5), leaf(3, 5)
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT, compact=False)
    eq.z.sum().backward()
    assert cell.num_calls == eq.stats.num_evals.max() + 1
    before = cell.num_calls
    spectral_radius(Equilibrium.at(cell, x, x))
    assert cell.num_calls == before + 1
