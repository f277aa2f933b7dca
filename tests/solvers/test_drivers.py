"""One step, several drivers: eager, without questions to the host, compiled, traced for export, and recorded."""

import functools
from dataclasses import replace

import pytest
import torch
from problems import PROBLEMS
from test_outside import Heavy
from torch import nn

from steadeq import DEQ, Anderson, Broyden, Loop, NewtonKrylov, Picard, Status, Unrolled, fixed_point
from steadeq._internal.trees import Layout
from steadeq.solvers._solve import Options, solve

# What is quick to trace, with windows that are full before the end.
QUICK = [
    Picard(max_evals=5, tol=0, damping=0.6),
    Anderson(max_evals=6, tol=0, memory=3, mixing=0.7, ridge=1e-4),
    Broyden(max_evals=6, tol=0, memory=3),
]
LONG = [
    Picard(max_evals=9, tol=0),
    Anderson(max_evals=9, tol=0),
    Anderson(max_evals=5, tol=0, memory=1),
    Broyden(max_evals=14, tol=0),
]


@pytest.fixture
def compiler(monkeypatch):
    """Compile with everything but the last step, the making of machine code."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    yield
    torch._dynamo.reset()


class Traced(nn.Module):
    """A solve as a module, for `torch.export`."""

    def __init__(self, f, solver, **options):
        super().__init__()
        self.f, self.solver, self.options = f, solver, Options(**options)

    def forward(self, z0, *inputs):
        layout = Layout(z0)
        z, stats, _ = solve(self.f, layout.pack(z0), inputs, solver=self.solver, layout=layout, options=self.options)
        return layout.unpack(z), stats.residual, stats.num_evals, stats.status


def traced(f, z0, inputs, solver, **options):
    with torch.no_grad():
        return torch.export.export(Traced(f, solver, **options), (z0, *inputs)).module()(z0, *inputs)


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *(("mixed", solver) for solver in QUICK[1:]),
        *(pytest.param("mixed", solver, marks=pytest.mark.slow) for solver in (QUICK[0], *LONG)),
        *(pytest.param("rotation", solver, marks=pytest.mark.slow) for solver in QUICK),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_traced_solve_follows_the_eager_one(name, solver):
    problem = PROBLEMS[name](torch.float64, 5)
    eq = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver, compact=False)
    z, residual, num_evals, status = traced(problem.f, problem.z0, problem.inputs, solver)
    # Paths part by rounding, which steps magnify.
    torch.testing.assert_close(z, eq.z, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(residual, eq.stats.residual, rtol=1e-4, atol=1e-11)
    is_clear = eq.stats.residual > 1e-12
    assert torch.equal(status[is_clear], eq.stats.status[is_clear])
    assert torch.equal(num_evals[is_clear], eq.stats.num_evals[is_clear])


def failing(z, limit, rate):
    """Not finite beyond a limit, and finite again after that."""
    return torch.where(z > limit, torch.nan, rate * z.nan_to_num().tanh() + 1)


LIMIT = torch.tensor([[9.0], [1.2], [9.0], [0.5], [9.0]], dtype=torch.float64).expand(5, 3).contiguous()
RATE = torch.tensor([[0.5], [0.5], [0.0], [0.5], [-3.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("driver", "solver"),
    [
        ("compiled", LONG[0]),
        ("traced", LONG[0]),
        *(("masked", solver) for solver in LONG),
        *(pytest.param("compiled", solver, marks=pytest.mark.slow) for solver in (LONG[1], LONG[3])),
        *(pytest.param("traced", solver, marks=pytest.mark.slow) for solver in (QUICK[1], LONG[3])),
    ],
    ids=str,
)
@torch.no_grad()
def test_samples_that_fail_or_are_solved_keep_what_they_had(driver, solver, compiler):
    z0 = torch.zeros(5, 3, dtype=torch.float64)
    eq = fixed_point(failing, z0, LIMIT, RATE, solver=solver, compact=False)
    if driver == "traced":
        z, residual, num_evals, status = traced(failing, z0, (LIMIT, RATE), solver)
    else:
        chosen = replace(solver, check_every=4 if driver == "masked" else None)
        found = fixed_point(failing, z0, LIMIT, RATE, solver=chosen, compact=False, compile=driver == "compiled")
        z, residual, num_evals, status = found.z, found.stats.residual, found.stats.num_evals, found.stats.status
    torch.testing.assert_close(z, eq.z)
    torch.testing.assert_close(residual, eq.stats.residual, rtol=1e-6, atol=1e-14)
    assert torch.equal(status, eq.stats.status)
    assert torch.equal(num_evals, eq.stats.num_evals)
    assert status[1] == status[3] == Status.NON_FINITE
    assert status[2] == Status.CONVERGED


@torch.no_grad()
def test_a_method_of_somebody_else_is_compiled_and_traced(compiler):
    problem = PROBLEMS["tanh_network"](torch.float64, 5)
    solver = Heavy(max_evals=60, tol=1e-4)
    eager = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver, compact=False)
    found = fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver, compile=True)
    torch.testing.assert_close(found.z, eager.z)
    assert torch.equal(found.stats.num_evals, eager.stats.num_evals)
    solver = Heavy(max_evals=4, tol=0)
    z, *_ = traced(problem.f, problem.z0, problem.inputs, solver)
    torch.testing.assert_close(z, fixed_point(problem.f, problem.z0, *problem.inputs, solver=solver).z)


class TestLoop:
    """`Loop` is the loop that one writes by hand."""

    weight = 0.9 * torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0]

    def f(self, z, x):
        return torch.tanh(z @ self.weight + x)

    @pytest.mark.parametrize(("num_steps", "last"), [(1, None), (7, None), (7, 2)])
    def test_it_returns_the_last_state_bit_for_bit_with_the_gradient_of_the_steps_that_are_recorded(
        self, num_steps, last
    ):
        x = torch.randn(5, 6, requires_grad=True)
        z = torch.zeros(5, 6)
        for step in range(num_steps):
            with torch.set_grad_enabled(last is None or step >= num_steps - last):
                before, z = z, self.f(z, x)
        eq = fixed_point(self.f, torch.zeros(5, 6), x, solver=Loop(num_steps=num_steps), adjoint=Unrolled(last=last))
        assert torch.equal(eq.z, z)
        assert eq.stats.num_evals.tolist() == [num_steps] * 5
        torch.testing.assert_close(eq.stats.residual, (z - before).norm(dim=1) / z.norm(dim=1))
        gradients = [torch.autograd.grad(state.square().sum(), x)[0] for state in (eq.z, z)]
        torch.testing.assert_close(*gradients)

    def test_a_block_that_knows_its_step_is_told(self):
        def block(z, x, step):
            return torch.tanh(z @ self.weight + x + step)

        x, z = torch.randn(5, 6, requires_grad=True), torch.zeros(5, 6)
        for step in range(4):
            z = block(z, x, step=step)
        eq = fixed_point(block, torch.zeros(5, 6), x, solver=Loop(num_steps=4, pass_step=True), adjoint=Unrolled())
        assert torch.equal(eq.z, z)
        gradients = [torch.autograd.grad(state.square().sum(), x)[0] for state in (eq.z, z)]
        torch.testing.assert_close(*gradients)

    def test_it_does_not_stop_where_a_step_changes_nothing(self):
        block = lambda z, step: z + (step == 2)  # noqa: E731
        eq = fixed_point(block, torch.zeros(2, 3), solver=Loop(num_steps=4, pass_step=True))
        assert torch.equal(eq.z, torch.ones(2, 3))

    def test_another_budget_is_another_number_of_steps(self):
        assert Loop(num_steps=3).with_max_evals(5) == Loop(num_steps=5)
        layer = DEQ(nn.Identity(), solver=Loop(num_steps=3))
        assert layer.solver.max_evals == 3


class Attention(nn.Module):
    """A causal cell over (batch, time, features)."""

    def __init__(self, features=8):
        super().__init__()
        self.mix, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, z, x):
        q, k, v = self.mix(z).chunk(3, dim=-1)
        scores = (q @ k.mT).masked_fill(torch.ones(z.shape[1], z.shape[1]).triu(1).bool(), -torch.inf)
        return self.norm(torch.tanh(self.out(scores.softmax(-1) @ v)) + x)


@pytest.mark.parametrize("kind", [Picard, Anderson, Broyden])
@pytest.mark.parametrize("max_evals", [2, 3, 6, 12])
@pytest.mark.parametrize("tol", [0, 1e-3])
@torch.no_grad()
def test_a_causal_solve_is_causal_bit_for_bit(kind, max_evals, tol):
    torch.manual_seed(0)
    cell, x = Attention(), torch.randn(3, 10, 8)
    other = x.clone()
    other[:, 6:] = torch.randn(3, 4, 8)
    solver = kind(max_evals=max_evals, tol=tol, causal=True)
    one, two = (DEQ(cell, solver=solver)(inputs) for inputs in (x, other))
    assert torch.equal(one[:, :6], two[:, :6])
    assert not torch.equal(one[:, 6:], two[:, 6:])
    masked = DEQ(cell, solver=replace(solver, check_every=4))(x)
    torch.testing.assert_close(masked, one, rtol=1e-5, atol=1e-6)
    # A prefix by itself has the same states, up to the rounding of its own shapes.
    torch.testing.assert_close(DEQ(cell, solver=solver)(x[:, :6]), one[:, :6], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Anderson, Broyden])
@torch.no_grad()
def test_a_compiled_causal_solve_follows_the_eager_one_and_is_causal_bit_for_bit(kind, compiler):
    torch.manual_seed(0)
    cell, x = Attention(), torch.randn(3, 10, 8)
    other = x.clone()
    other[:, 6:] = torch.randn(3, 4, 8)
    for max_evals, tol in ((6, 0), (12, 1e-3)):
        solver = kind(max_evals=max_evals, tol=tol, causal=True)
        layer = DEQ(cell, solver=solver, compile=True)
        one, two = layer.solve(x), layer.solve(other)
        assert torch.equal(one.z[:, :6], two.z[:, :6])
        eager = DEQ(cell, solver=solver).solve(x)
        assert torch.equal(one.stats.num_evals, eager.stats.num_evals)
        assert torch.equal(one.stats.status, eager.stats.status)
        torch.testing.assert_close(one.z, eager.z, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_causal_solve_takes_no_more_evaluations_and_ends_at_the_same_state():
    torch.manual_seed(0)
    cell, x = Attention(), torch.randn(8, 10, 8)
    for kind in (Anderson, Broyden):
        plain, causal = (
            DEQ(cell, solver=kind(max_evals=60, tol=1e-5, causal=causal)).solve(x) for causal in (False, True)
        )
        assert causal.stats.converged.all()
        torch.testing.assert_close(causal.z, plain.z, rtol=1e-3, atol=1e-3)
        assert causal.stats.num_evals.float().mean() <= 1.3 * plain.stats.num_evals.float().mean()
        residual = (cell(causal.z, x) - causal.z).flatten(1).norm(dim=1) / cell(causal.z, x).flatten(1).norm(dim=1)
        assert (residual <= 2e-5).all()


def test_a_causal_solve_has_the_gradient_of_its_equilibrium():
    torch.manual_seed(0)
    cell, x = Attention().double(), torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    gradients = []
    for causal in (False, True):
        z = DEQ(cell, solver=Anderson(max_evals=100, tol=1e-11, causal=causal))(x)
        gradients.append(torch.autograd.grad(z.square().sum(), x)[0])
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_what_has_no_causal_form_says_so():
    with pytest.raises(ValueError, match=r"causal"):
        NewtonKrylov(causal=True)
    with pytest.raises(ValueError, match="causal=True solves token by token"):
        fixed_point(torch.cos, (torch.zeros(2, 3, 4), torch.zeros(2, 4, 4)), solver=Anderson(causal=True))
