import pytest
import torch
from adjoints.cells import ADJOINTS, EXACT, LONG_LOOP, TIGHT, TanhCell, energy, leaf, matrix
from torch.autograd import forward_ad

from steadeq import DEQ, Anderson, Broyden, NewtonKrylov, Picard, Unrolled, fixed_point

# Forward mode makes torch call its own deprecated torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

TRANSFORMS = {
    "grad": lambda loss, x: torch.func.grad(loss)(x),
    "vjp": lambda loss, x: torch.func.vjp(loss, x)[1](x.new_ones(()))[0],
    "jacrev": lambda loss, x: torch.func.jacrev(loss)(x),
    "jvp": lambda loss, x: torch.func.jvp(loss, (x,), (torch.ones_like(x),)),
    "hessian": lambda loss, x: torch.func.hessian(loss)(x),
    "jacfwd": lambda loss, x: torch.func.jacfwd(loss)(x),
}
SAFE = {name: adjoint for name, adjoint in ADJOINTS.items() if name != "unrolled"}


@pytest.fixture
def cell():
    return TanhCell(4)


@pytest.fixture
def x():
    return torch.randn(3, 4, dtype=torch.float64)


def make_loss(cell, solver, adjoint):
    return lambda x: energy(fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z)


@pytest.mark.parametrize("name", ["jvp", "jacfwd", "hessian"])
@pytest.mark.parametrize("adjoint", SAFE.values(), ids=SAFE)
def test_forward_mode_transforms_over_a_custom_gradient_are_refused_with_advice(name, adjoint, cell, x):
    loss = make_loss(cell, Broyden(), adjoint)
    with pytest.raises(RuntimeError, match=r"^fixed_point .* forward-mode derivative.*Unrolled\(\)"):
        TRANSFORMS[name](loss, x)


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *((name, LONG_LOOP) for name in ("grad", "vjp", "jacrev", "jacfwd")),
        ("grad", TIGHT),
        ("grad", Broyden(max_evals=200, tol=1e-12)),
        ("grad", NewtonKrylov(max_evals=400, tol=1e-12)),
    ],
)
def test_transforms_over_unrolling_give_the_right_gradient(name, solver, cell, x):
    expected = torch.autograd.grad(make_loss(cell, TIGHT, EXACT)(x.requires_grad_()), x)[0]
    actual = TRANSFORMS[name](make_loss(cell, solver, Unrolled()), x.detach())
    is_loop = solver is LONG_LOOP
    torch.testing.assert_close(
        actual.detach(), expected, rtol=1e-9 if is_loop else 1e-7, atol=1e-10 if is_loop else 1e-8
    )


def test_torch_func_reaches_closed_over_parameters_when_unrolled(x):
    def loss(weight, adjoint=Unrolled(), solver=LONG_LOOP):  # noqa: B008
        f = lambda z, x: torch.tanh(z @ weight.T + x)  # noqa: E731
        return energy(fixed_point(f, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z)

    weight = matrix(4, 0.6)
    expected = torch.autograd.grad(loss(weight.requires_grad_(), EXACT, TIGHT), weight)[0]
    torch.testing.assert_close(torch.func.grad(loss)(weight.detach()), expected, rtol=1e-9, atol=1e-10)


def test_vmap_over_closed_over_parameters_is_refused(x):
    def value(weight):
        f = lambda z, x: torch.tanh(z @ weight.T + x)  # noqa: E731
        return fixed_point(f, torch.zeros_like(x), x, solver=Picard(), adjoint=Unrolled()).z

    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(value)(torch.stack([matrix(4, 0.5), matrix(4, 0.5)]))


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("solver", [LONG_LOOP, TIGHT], ids=["picard", "anderson"])
def test_forward_mode_is_right_or_refused(solver, is_warm, grad, cell, x):
    with torch.no_grad():
        z_star = fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT).z
        slope = 1 - z_star**2
        v = torch.randn_like(x)
        expected = torch.stack(
            [
                torch.linalg.solve(torch.eye(4) - row[:, None] * cell.weight, row * u)
                for row, u in zip(slope, v, strict=True)
            ]
        )
    z0 = z_star if is_warm else torch.zeros_like(x)
    with torch.set_grad_enabled(grad), forward_ad.dual_level():
        try:
            z = fixed_point(cell, z0, forward_ad.make_dual(x, v), solver=solver, adjoint=EXACT).z
        except RuntimeError:
            return
        tangent = forward_ad.unpack_dual(z).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent.detach(), expected, rtol=1e-9, atol=1e-10)


def test_a_layer_runs_under_transforms_that_do_not_concern_it():
    # A transform around code that uses a layer as a constant.
    layer = DEQ(TanhCell(4), solver=Anderson(tol=1e-6), adjoint=Unrolled())
    x = leaf(2, 4)

    def loss(scale):
        with torch.no_grad():
            z = layer(x)
        return (scale * z).sum()

    scale = torch.tensor(2.0, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(x).sum()
    torch.testing.assert_close(torch.func.grad(loss)(scale), expected)
