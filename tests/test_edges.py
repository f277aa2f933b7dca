"""Just outside of the home ground: where a clean status once stood on a wrong result."""

import contextlib
import functools
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from steadeq import (
    DEQ,
    GMRES,
    Anderson,
    Broyden,
    Equilibrium,
    Implicit,
    Loop,
    NewtonKrylov,
    OneStep,
    Phantom,
    Picard,
    RandomnessWarning,
    ResidualRegularizer,
    Reversible,
    Status,
    Unrolled,
    diagnose,
    fixed_point,
    jacobian_penalty,
    operator_norm_penalty,
    residual_penalty,
    spectral_penalty,
    spectral_radius,
)

SOLVERS = [Picard, Anderson, Broyden, NewtonKrylov]


class Mixing(nn.Module):
    def __init__(self, matrix):
        super().__init__()
        self.matrix = matrix

    def forward(self, z):
        return self.matrix @ z


class Gated(nn.Module):
    """Independent rows, but that an element of one sees an element of another once a gate is open."""

    def __init__(self, weight, row, other):
        super().__init__()
        self.weight, self.row, self.other, self.seen = weight, row, other, None
        self.gate = nn.Parameter(torch.zeros((), dtype=weight.dtype))

    def forward(self, z, x):
        added = torch.zeros_like(z).index_put((torch.tensor(self.row), torch.tensor(3)), z[self.other, 5])
        image = 0.5 * torch.tanh(z @ self.weight) + self.gate * added + x
        if image.requires_grad:
            image.register_hook(lambda g: self.seen(g) if self.seen else None)
        return image


class TestRowsThatSeeEachOther:
    """Nodes in dim 0: a ring of 40, as graph libraries have them."""

    ring = torch.roll(torch.eye(40, dtype=torch.float64), 1, 0)
    weight = (
        0.9 * torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    )
    x = torch.randn(40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    solver = Anderson(max_evals=200, tol=1e-10)
    adjoint = Implicit(GMRES(max_evals=400, tol=1e-10))

    def f(self, z, x):
        return self.ring @ torch.tanh(z @ self.weight) + x

    def truth(self, x):
        z = torch.zeros_like(x)
        for _ in range(600):
            z = self.f(z, x)
        return z

    def test_the_gradient_is_refused_and_names_the_remedy(self):
        x = self.x.clone().requires_grad_()
        f = lambda z: self.ring @ torch.tanh(z @ self.weight) + x  # noqa: E731
        with pytest.raises(ValueError, match="batch_dims=0"):
            fixed_point(f, torch.zeros_like(x), solver=self.solver, adjoint=self.adjoint).z.square().sum().backward()

    @pytest.mark.parametrize("solver", [Picard, Anderson, NewtonKrylov])
    def test_a_solve_without_gradients_or_leaving_is_refused_too(self, solver):
        x = self.x * torch.logspace(-3, 2, 40, dtype=torch.float64)[:, None]
        f = lambda z: self.ring @ torch.tanh(z @ self.weight) + x  # noqa: E731
        with torch.no_grad(), pytest.raises(ValueError, match="batch_dims=0"):
            fixed_point(f, torch.zeros(40, 8, dtype=torch.float64), solver=solver(max_evals=300, tol=1e-8))

    def test_a_helper_that_solves_many_cells_has_each_of_them_looked_at(self):
        def gradient(mixing):
            x = self.x.clone().requires_grad_()
            chosen = nn.Identity() if mixing is None else Mixing(mixing)
            f = lambda z, x: chosen(torch.tanh(0.9 * z)) + x  # noqa: E731
            eq = fixed_point(f, torch.zeros_like(x), x, solver=Loop(num_steps=4), adjoint=self.adjoint)
            return torch.autograd.grad(eq.z.sum(), x)

        gradient(None)
        with pytest.raises(ValueError, match="batch_dims=0"):
            gradient(self.ring)

    @pytest.mark.parametrize(
        "backward", [lambda loss, x: loss.backward(), torch.autograd.grad], ids=["backward", "grad"]
    )
    @pytest.mark.parametrize("seed", range(6))
    def test_one_element_that_sees_one_other_is_found_by_the_residual_of_the_backward_solve(self, seed, backward):
        row, other = torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:2].tolist()
        x = self.x[:12].clone().requires_grad_()
        cell = Gated(self.weight, row, other)
        cell.gate.data.fill_(0.8)
        # The state is right, as each row goes on until it stands still.
        eq = fixed_point(cell, torch.zeros(12, 8, dtype=torch.float64), x, solver=self.solver, compact=False)
        with pytest.raises(ValueError, match="batch_dims=0"):
            backward(eq.z.pow(3).sum(), x)

    def test_a_tie_that_is_weak_beside_rounding_is_noticed(self):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        f = lambda z, x: 0.5 * torch.tanh(z) + 1e-4 * z.mean(dim=0, keepdim=True) + x  # noqa: E731
        z = fixed_point(f, torch.zeros_like(x), x, compact=False).z
        with pytest.raises(ValueError, match="batch_dims=0"):
            z.pow(3).sum().backward()

    def test_rows_that_begin_to_see_each_other_are_noticed_at_no_cost(self):
        cell = Gated(self.weight, 2, 9)
        products = []

        def gradient():
            x = self.x[:12].clone().requires_grad_()
            eq = fixed_point(cell, torch.zeros_like(x), x, solver=self.solver, compact=False)
            cell.seen = products.append
            eq.z.pow(3).sum().backward()
            cell.seen = None
            return eq

        gradient()
        products.clear()
        eq = gradient()
        # One for each that is counted, and the pass that carries the solution on.
        assert len(products) == int(eq.backward.num_evals.max()) + 1
        cell.gate.data.fill_(0.8)
        with pytest.raises(ValueError, match=r"residual, recomputed with one product.*batch_dims=0"):
            gradient()

    def test_rows_that_see_each_other_only_far_from_the_first_states_are_noticed(self):
        class Cell(nn.Module):
            def forward(self, z, x):
                return 0.5 * torch.tanh(z) + 0.4 * torch.relu(z.abs() - 2).mean(dim=0, keepdim=True) + x

        layer, x = DEQ(Cell(), solver=self.solver, adjoint=self.adjoint), self.x[:16].clone().requires_grad_()
        layer(0.2 * x).sum().backward()
        with pytest.raises(ValueError, match="batch_dims=0"):
            layer(3 * x)

    def test_a_sample_whose_equilibrium_is_zero_is_none_of_these(self):
        x = torch.linspace(0, 1, 10)[:, None].expand(10, 4)
        with torch.no_grad():
            eq = fixed_point(lambda z, x: 0.5 * torch.tanh(z) + x, torch.ones(10, 4), x, solver=Picard(max_evals=100))
        assert eq.stats.converged.all()

    def test_batch_norm_is_warned_of_where_a_function_uses_it(self):
        norm, x = nn.BatchNorm1d(8).double(), self.x.clone().requires_grad_()
        with pytest.warns(RandomnessWarning, match="BatchNorm1d"):
            fixed_point(lambda z, x: torch.tanh(norm(0.5 * z) + x), torch.zeros_like(x), x, solver=self.solver)

    def test_leaving_the_batch_is_noticed(self):
        x = torch.randn(40, 8) * torch.logspace(-3, 2, 40)[:, None]
        with torch.no_grad(), pytest.raises((ValueError, RuntimeError), match="batch_dims=0"):
            fixed_point(
                lambda z, x: z.mean(0, keepdim=True) * 0.9 + x, torch.zeros(40, 8), x, solver=Picard(max_evals=300)
            )

    def test_an_index_of_nodes_that_have_left_says_the_same(self):
        source, target = torch.arange(40), torch.arange(40).roll(1)

        def f(z, x):
            return x + 0.5 * torch.zeros_like(z).index_add(0, target, torch.tanh(z[source]))

        x = torch.randn(40, 8) * torch.logspace(-6, 2, 40)[:, None]
        with torch.no_grad(), pytest.raises((ValueError, RuntimeError), match="batch_dims=0"):
            fixed_point(f, torch.zeros(40, 8), x, solver=Picard(max_evals=100, tol=1e-4))

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_as_one_sample_all_is_right(self, solver):
        x = self.x.clone().requires_grad_()
        eq = fixed_point(
            self.f,
            torch.zeros_like(self.x),
            x,
            solver=solver(max_evals=600, tol=1e-11),
            adjoint=self.adjoint,
            batch_dims=0,
        )
        assert eq.stats.status.shape == (1,)
        assert eq.stats.converged.all()
        expected = self.truth(x)
        torch.testing.assert_close(eq.z, expected, rtol=1e-8, atol=1e-8)
        gradients = [torch.autograd.grad(z.pow(3).sum(), x)[0] for z in (eq.z, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)

    def test_spectra_penalties_and_diagnosis_too(self):
        z = self.truth(self.x)
        dense = torch.autograd.functional.jacobian(lambda z: self.f(z, self.x), z).reshape(320, 320)
        radius = torch.linalg.eigvals(dense).abs().max()
        eq = Equilibrium.at(self.f, z, self.x, batch_dims=0)
        found = spectral_radius(eq, max_products=320)
        assert (found.value[0] - radius).abs() <= found.error[0] + 1e-6
        generator = torch.Generator().manual_seed(0)
        penalty = jacobian_penalty(eq, num_probes=400, generator=generator)
        torch.testing.assert_close(penalty, dense.square().sum() / 320, rtol=0.05, atol=0)
        diagnosis = diagnose(self.f, torch.zeros_like(z), self.x, batch_dims=0, max_products=320)
        assert (diagnosis.radius.value[0] - radius).abs() <= diagnosis.radius.error[0] + 1e-3

    def test_radii_of_rows_that_see_each_other_are_refused(self):
        f = lambda z, x: self.ring @ torch.tanh(z @ self.weight) + x  # noqa: E731
        with pytest.raises(ValueError, match="batch_dims=0"):
            spectral_radius(Equilibrium.at(f, self.truth(self.x), self.x))

    @pytest.mark.parametrize("shape", [(), (5,), (3, 4, 2)])
    def test_a_state_without_a_batch_may_have_any_shape(self, shape):
        x = torch.rand(shape)
        eq = fixed_point(lambda z, x: 0.5 * torch.cos(z) + x, torch.zeros(shape), x, batch_dims=0)
        assert eq.z.shape == shape
        torch.testing.assert_close(eq.z, 0.5 * torch.cos(eq.z) + x, rtol=2e-3, atol=2e-3)

    def test_independent_samples_are_probed_once(self):
        calls = []

        class Cell(nn.Module):
            def forward(self, z, x):
                calls.append(len(z))
                return 0.5 * torch.tanh(z) + x

        layer, x = DEQ(Cell(), solver=Anderson(max_evals=8, tol=1e-6)), torch.randn(16, 3)
        counts = []
        for _ in range(3):
            calls.clear()
            with torch.no_grad():
                eq = layer.solve(x)
            counts.append(len(calls) - int(eq.stats.num_evals.max()))
        assert counts[0] <= 1
        assert counts[1:] == [0, 0]


class TestConvergedAtInfinity:
    drift = torch.linspace(0.1, 1, 16)

    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_drift_does_not_converge(self, solver, dtype):
        for seed in range(6):
            z0 = torch.randn(1, 16, dtype=dtype, generator=torch.Generator().manual_seed(seed))
            for max_evals in (30, 100):
                eq = fixed_point(lambda z: z + self.drift.to(dtype), z0, solver=solver(max_evals=max_evals))
                assert not eq.stats.converged.any()

    def test_a_residual_block_that_has_no_fixed_point_does_not_converge(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        for solver in SOLVERS:
            with torch.no_grad():
                x = torch.randn(4, 32)
                eq = fixed_point(lambda z, x: z + net(z + x), torch.zeros(4, 32), x, solver=solver(max_evals=60))
            absolute = (net(eq.z + x)).norm(dim=1)
            assert not (eq.stats.converged & (absolute > 0.1)).any()

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_not_even_where_newton_lowers_its_residual_to_a_fifth(self, solver):
        # A sphere of 6 dimensions is mapped into 8: generically no point of it to zero.
        num_converged = 0
        for seed in range(3):
            torch.manual_seed(seed)
            net = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            with torch.no_grad():
                eq = fixed_point(
                    lambda z, x, net=net: z + net(z + x),
                    torch.zeros(8, 8),
                    torch.randn(8, 8),
                    solver=solver(max_evals=60),
                )
            num_converged += int(eq.stats.converged.sum())
        assert num_converged == 0

    @pytest.mark.parametrize("max_evals", [40, 400, 2000])
    @pytest.mark.parametrize("rate", [0.99995, 0.999999])
    def test_a_map_that_contracts_slowly_has_not_diverged(self, rate, max_evals):
        eq = fixed_point(lambda z: rate * z + 5e-5, torch.zeros(1, 1), solver=Picard(max_evals=max_evals))
        assert eq.stats.status.tolist() == [Status.MAX_EVALS]

    def test_counting_upwards_diverges(self):
        eq = fixed_point(lambda z: z + 1, torch.zeros(1, 1), solver=Picard(max_evals=2000))
        assert eq.stats.status.tolist() == [Status.DIVERGED]
        assert "growing" in Status.DIVERGED.message

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_equilibria_far_from_the_start_still_converge(self, solver):
        torch.manual_seed(0)
        chain = torch.rand(20, 20, dtype=torch.float64)
        chain = chain / chain.sum(dim=1, keepdim=True)
        reward = torch.rand(1, 20, dtype=torch.float64)
        eq = fixed_point(
            lambda z: reward + 0.999 * z @ chain.T,
            torch.zeros(1, 20, dtype=torch.float64),
            solver=solver(max_evals=20_000, tol=1e-5),
        )
        assert eq.stats.converged.all()
        exact = torch.linalg.solve(torch.eye(20, dtype=torch.float64) - 0.999 * chain, reward[0])
        assert ((eq.z[0] - exact).norm() / exact.norm()) < 0.02


class TestSizes:
    matrix = 0.5 * torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0]

    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize(
        ("size", "dtype"),
        [
            *((size, torch.float32) for size in (1e-30, 1e-22, 1e30)),
            (1e-30, torch.bfloat16),
            *((size, torch.float64) for size in (1e-250, 1e-164, 1e250)),
        ],
    )
    def test_states_of_any_size_are_solved_as_those_of_size_one(self, solver, size, dtype):
        def f(z, x):
            return z @ self.matrix.to(z) + x

        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
        one, other = (
            fixed_point(f, torch.zeros_like(x), scale * x, solver=solver(max_evals=60, tol=1e-2))
            for scale in (1.0, 2.0 ** round(np.log2(size)))
        )
        assert other.stats.converged.all()
        torch.testing.assert_close(other.z.double() / 2.0 ** round(np.log2(size)), one.z.double(), rtol=2e-2, atol=2e-2)
        assert torch.equal(one.stats.num_evals, other.stats.num_evals)

    @pytest.mark.parametrize("adjoint", [Implicit(), Implicit(Anderson()), Phantom()], ids=repr)
    @pytest.mark.parametrize("size", [1e-30, 1e30])
    def test_so_are_gradients(self, size, adjoint):
        gradients = []
        for scale in (1.0, 2.0 ** round(np.log2(size))):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
            z = fixed_point(lambda z, x: z @ self.matrix + x, torch.zeros(4, 6), x, adjoint=adjoint).z
            gradients.append(torch.autograd.grad(scale * z.sum(), x)[0] / scale)
        torch.testing.assert_close(*gradients)

    def test_diagnosis_goes_on_where_squares_overflow(self):
        found = diagnose(lambda z: 10 * z, torch.ones(1, 2), max_evals=64, metric=lambda z: z.isfinite().all().float())
        assert found.metric[20] == 1
        assert found.metric[-1] == 0


class TestStateWrittenOver:
    def writing(self, how, begin):
        calls = []

        def f(z, x):
            calls.append(1)
            image = torch.tanh(0.5 * z + x)
            if len(calls) < begin:
                return image
            if how == "copy":
                return z.copy_(image)
            if how == "aside":
                z.mul_(0.9)
                return image
            z.numpy()[:] = image.numpy()
            return image

        return f

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("solver", [Picard(damping=0.5), Anderson(mixing=0.7), Anderson(), Broyden()], ids=repr)
    @pytest.mark.parametrize(("how", "begin"), [("copy", 1), ("copy", 2), ("aside", 1), ("aside", 3), ("numpy", 1)])
    def test_is_refused(self, how, begin, solver, mode):
        with mode(), pytest.raises(ValueError, match=r"in place|wrote its result"):
            fixed_point(self.writing(how, begin), torch.zeros(4, 3), torch.randn(4, 3), solver=solver)

    @torch.no_grad()
    @pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 1.0), (torch.float32, 1e-25)])
    @pytest.mark.parametrize("how", ["copy", "aside"])
    def test_is_refused_too_where_f_sees_a_copy(self, how, dtype, size):
        x = size * torch.randn(4, 3, dtype=dtype)
        with pytest.raises(ValueError, match=r"in place|wrote its result"):
            fixed_point(self.writing(how, 3), torch.zeros(4, 3, dtype=dtype), x, solver=Picard(damping=0.5, tol=1e-6))

    @torch.no_grad()
    def test_is_refused_too_where_only_the_start_comes_from_inference_mode(self):
        with torch.inference_mode():
            z0 = torch.zeros(4, 3)
        with pytest.raises(ValueError, match="in place"):
            fixed_point(self.writing("aside", 1), z0, torch.randn(4, 3), solver=Picard())

    def test_inference_mode_gives_what_no_grad_gives(self):
        x, cell = torch.randn(12, 3), nn.Linear(3, 3)
        results = []
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                results.append(fixed_point(lambda z, x: torch.tanh(0.5 * cell(z) + x), torch.zeros(12, 3), x).z)
        assert torch.equal(*results)


class TestNotTheSameEachTime:
    @pytest.mark.parametrize("has_gradients", [True, False])
    def test_a_map_that_remembers_is_not_said_to_have_converged(self, has_gradients):
        class Counting(nn.Module):
            number = 0

            def forward(self, z, x):
                self.number += 1
                return 0.5 * torch.tanh(z) + x + 3e-3 * self.number * (x > 1)

        cell, x = Counting(), torch.linspace(0.5, 3, 6).expand(4, 6).contiguous() * torch.logspace(-2, 0, 4)[:, None]
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(torch.set_grad_enabled(has_gradients))
            if has_gradients:
                contexts.enter_context(pytest.warns(RandomnessWarning, match="random|remembered"))
            eq = fixed_point(cell, torch.zeros(4, 6), x.requires_grad_(has_gradients), solver=Picard(tol=4e-3))
        number, cell.number = cell.number, cell.number - 1
        residual = (cell(eq.z, x) - eq.z).norm(dim=1) / cell(eq.z, x).norm(dim=1)
        assert number > 2
        assert not (eq.stats.converged & (residual > 3 * 4e-3)).any()


class TestNoGraph:
    @torch.no_grad()
    def f(self, z, x):
        return torch.tanh(0.5 * z + x)

    @pytest.mark.parametrize("penalty", [functools.partial(jacobian_penalty, estimator="difference"), residual_penalty])
    def test_a_penalty_that_could_have_no_gradient_is_refused(self, penalty):
        with pytest.raises(RuntimeError, match="graph between z and f"):
            penalty(Equilibrium.at(self.f, torch.ones(3, 4), torch.randn(3, 4)))
        with torch.no_grad():
            assert penalty(Equilibrium.at(self.f, torch.ones(3, 4), torch.randn(3, 4))) > 0

    def test_a_term_that_is_skipped_has_the_dtype_of_one_that_is_not(self):
        eq = Equilibrium.at(torch.cos, torch.ones(3, 4, dtype=torch.bfloat16))
        terms = [ResidualRegularizer(weight=1, probability=p)(eq, step=0) for p in (0, 1)]
        assert terms[0].dtype == terms[1].dtype == torch.float32


class TestOneBadSample:
    @pytest.mark.parametrize(
        ("solver", "adjoint"),
        [
            *itertools.product(
                [Picard(max_evals=40), Anderson(), Broyden()],
                [Implicit(), OneStep(), Phantom(), Unrolled(), Unrolled(last=2)],
            ),
            (Picard(damping=0.5), Reversible()),
        ],
        ids=repr,
    )
    def test_it_costs_its_neighbors_no_gradient(self, solver, adjoint):
        cell, x = nn.Linear(4, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
        bad = x.clone()
        bad[2] = torch.nan
        keep = torch.tensor([0, 1, 3, 4])
        gradients = []
        for inputs in (x, bad):
            cell.zero_grad()
            f = lambda z, x: torch.tanh(0.5 * cell(z) + x)  # noqa: E731
            z = fixed_point(f, torch.zeros_like(x), inputs, solver=solver, adjoint=adjoint, compact=False).z
            z[keep].square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in cell.parameters()])
        for clean, with_bad in zip(*gradients, strict=True):
            torch.testing.assert_close(with_bad, clean, rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize(
        "penalty",
        [
            jacobian_penalty,
            functools.partial(jacobian_penalty, estimator="difference"),
            functools.partial(operator_norm_penalty, num_steps=40),
            spectral_penalty,
            residual_penalty,
        ],
        ids=["jacobian", "difference", "operator norm", "spectral", "residual"],
    )
    @pytest.mark.parametrize("is_solved", [True, False])
    def test_it_is_left_out_of_penalties(self, penalty, is_solved):
        torch.manual_seed(0)
        # A diagonal Jacobian, of which all estimates are exact whatever is drawn.
        weight = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64).requires_grad_()
        f = lambda z, x: weight * z + x  # noqa: E731
        x = torch.randn(4, 3, dtype=torch.float64)
        bad = x.clone()
        bad[1] = torch.nan
        values = []
        for inputs in (x[[0, 2, 3]], bad):
            eq = fixed_point(f, torch.zeros_like(inputs), inputs, solver=Picard(max_evals=5, tol=1e-8))
            if not is_solved:
                z = eq.z.detach().clone()
                z[inputs.isnan()] = torch.nan
                eq = Equilibrium.at(f, z, inputs)
            value = penalty(eq)
            values.append((value.detach(), *torch.autograd.grad(value, weight)))
        for alone, beside in zip(*values, strict=True):
            torch.testing.assert_close(beside, alone, rtol=1e-6, atol=1e-9)
