import math

import pytest
import torch
from jacobian.cells import dense_jacobians, linear, matrices, multiscale, one_layer, seeded, transformer, two_layers

from steadeq import Equilibrium, jacobian_penalty, operator_norm_penalty
from steadeq._internal.linearization import Linearization


@pytest.mark.parametrize("probe", ["rademacher", "gaussian", "sphere"])
@pytest.mark.parametrize("estimator", ["vjp", "difference"])
def test_estimates_are_unbiased_and_have_the_variance_of_their_formula(estimator, probe):
    n, count = 10, 6000
    M = matrices(batch=1, dim=n)[0]
    A = M @ M.T if estimator == "vjp" else M.T @ M
    variance = {
        "gaussian": 2 * A.square().sum(),
        "rademacher": 2 * (A.square().sum() - A.diagonal().square().sum()),
        "sphere": 2 * n / (n + 2) * (A - A.trace() / n * torch.eye(n, dtype=A.dtype)).square().sum(),
    }[probe]
    for num_probes in (1, 4):
        # The derivative by a factor of its own tells what the estimate of a sample is.
        factor = torch.ones(count, 1, dtype=torch.float64, requires_grad=True)
        eq = Equilibrium.at(lambda z, c: c * (z @ M.T), torch.randn(count, n, dtype=torch.float64), factor)
        value = jacobian_penalty(eq, probe=probe, num_probes=num_probes, estimator=estimator)
        estimates = torch.autograd.grad(value, factor)[0] * count * n / 2
        assert value.item() == pytest.approx(estimates.mean().item() / n)
        assert abs(estimates.mean() - A.trace()) < 4 * estimates.std() / math.sqrt(count)
        assert estimates.var().item() == pytest.approx(variance.item() / num_probes, rel=0.15)


class TestOperatorNormPenalty:
    @pytest.mark.parametrize("make", [one_layer, two_layers, transformer, multiscale])
    def test_it_is_the_mean_square_of_the_largest_singular_values(self, make):
        f, z, inputs = make()
        exact = torch.linalg.svdvals(dense_jacobians(f, z, inputs))[:, 0].square().mean().item()
        found = operator_norm_penalty(Equilibrium.at(f, z, *inputs), num_steps=400, generator=seeded()).item()
        assert found == pytest.approx(exact, rel=1e-3)
        assert found <= exact * (1 + 1e-12)

    def test_it_is_a_lower_bound_that_grows_with_the_steps(self):
        M = matrices(batch=3, dim=30)
        eq = Equilibrium.at(linear, torch.zeros(3, 30, dtype=M.dtype), M)
        found = [operator_norm_penalty(eq, num_steps=n, generator=seeded()).item() for n in (1, 2, 4, 8, 16, 200)]
        assert found == sorted(found)
        assert found[-1] == pytest.approx(torch.linalg.matrix_norm(M, 2).square().mean().item(), rel=1e-3)

    def test_its_gradient_passes_gradcheck_where_the_largest_singular_value_is_simple(self):
        x, z = torch.randn(2, 2, 4, dtype=torch.float64)
        direction = torch.outer(*torch.randn(2, 4, dtype=torch.float64))

        def penalty(W):
            eq = Equilibrium.at(lambda z, x: torch.tanh(z @ W.T + x), z, x)
            return operator_norm_penalty(eq, num_steps=100, generator=seeded())

        W = (direction + 0.1 * torch.randn(4, 4, dtype=torch.float64)).requires_grad_()
        assert torch.autograd.gradcheck(penalty, (W,))

    def test_its_gradient_is_a_subgradient_where_the_largest_singular_value_is_repeated(self):
        Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
        M = (Q * torch.tensor([2.0, 2.0, 2.0, 1.0, 0.5, 0.1])).requires_grad_()
        penalty = operator_norm_penalty(
            Equilibrium.at(lambda z: z @ M.T, torch.zeros(1, 6, dtype=M.dtype)), num_steps=60
        )
        assert penalty.item() == pytest.approx(4)
        (gradient,) = torch.autograd.grad(penalty, M)
        # sigma² is convex in J: it lies above each of its tangents.
        for size in (1e-3, 0.1, 10.0):
            for _ in range(50):
                change = size * torch.randn(6, 6, dtype=M.dtype)
                change -= size * gradient / gradient.norm()
                tangent = penalty + (gradient * change).sum()
                assert torch.linalg.matrix_norm(M + change, 2).square() >= tangent - 1e-9

    @pytest.mark.parametrize("num_steps", [1, 5])
    def test_it_costs_two_products_a_step_and_one_more_and_a_single_evaluation(self, num_steps, monkeypatch):
        calls = {"vjp": 0, "jvp": 0, "f": 0, "differentiated": 0}
        plain_vjp, plain_jvp = Linearization.vjp, Linearization.jvp

        def vjp(self, u, *, create_graph=False):
            # Products with J are derivatives of one at zero, which is made once.
            calls["vjp"] += bool(u.any())
            calls["differentiated"] += create_graph and bool(u.any())
            return plain_vjp(self, u, create_graph=create_graph)

        def jvp(self, v):
            calls["jvp"] += 1
            return plain_jvp(self, v)

        def f(z):
            calls["f"] += 1
            return torch.tanh(z)

        # The first product with a cell's Jacobian is a probe, which tells whether samples see each other.
        operator_norm_penalty(Equilibrium.at(f, torch.ones(2, 3)), num_steps=num_steps)
        calls["f"] = 0
        monkeypatch.setattr(Linearization, "vjp", vjp)
        monkeypatch.setattr(Linearization, "jvp", jvp)
        operator_norm_penalty(Equilibrium.at(f, torch.ones(2, 3)), num_steps=num_steps)
        assert calls == {"vjp": num_steps + 1, "jvp": num_steps, "f": 1, "differentiated": 1}
