import math

import pytest
import torch
from jacobian.cells import (
    dense_jacobians,
    linear,
    matrices,
    multiscale,
    one_layer,
    seeded,
    transformer,
    two_layers,
)

from steadeq import Equilibrium, jacobian_penalty, operator_norm_penalty
from steadeq._internal.linearization import Linearization

PROBES = ("rademacher", "gaussian", "sphere")


@pytest.mark.parametrize("probe", PROBES)
def test_penalty_is_an_unbiased_estimate_of_the_squared_norm_over_d(probe):
    M = matrices()
    exact = M.square().sum() / (4 * 12)
    samples = torch.stack(
        [
            jacobian_penalty(Equilibrium.at(linear, torch.zeros(4, 12, dtype=M.dtype), M), probe=probe)
            for _ in range(4000)
        ]
    )
    standard_error = samples.std() / math.sqrt(4000)
    assert abs(samples.mean() - exact) < 4 * standard_error
    assert standard_error < 0.01 * exact


@pytest.mark.parametrize("probe", PROBES)
def test_variance_of_one_probe_matches_its_formula(probe):
    M = matrices(batch=1, dim=10)
    A = M[0] @ M[0].T
    n = 10
    expected = {
        "gaussian": 2 * A.square().sum(),
        "rademacher": 2 * (A.square().sum() - A.diagonal().square().sum()),
        "sphere": 2 * n / (n + 2) * (A - A.trace() / n * torch.eye(n, dtype=A.dtype)).square().sum(),
    }[probe]
    estimate = torch.stack(
        [
            jacobian_penalty(Equilibrium.at(linear, torch.zeros(1, n, dtype=M.dtype), M), probe=probe) * n
            for _ in range(6000)
        ]
    )
    assert estimate.var() == pytest.approx(expected.item(), rel=0.15)


def test_error_falls_with_the_square_root_of_the_number_of_probes():
    M = matrices(batch=1)
    exact = M.square().sum() / 12

    def error(num_probes):
        z = torch.zeros(1, 12, dtype=M.dtype)
        estimates = [
            jacobian_penalty(Equilibrium.at(linear, z, M), num_probes=num_probes, probe="gaussian") for _ in range(400)
        ]
        return (torch.stack(estimates) - exact).square().mean().sqrt()

    ratio = error(1) / error(16)
    assert 3 < ratio < 5.3


def test_rademacher_probes_are_exact_for_a_diagonal_jacobian():
    scale = torch.tensor([[0.5, 2.0, 3.0]])
    penalty = jacobian_penalty(Equilibrium.at(lambda z: scale * z, torch.ones(2, 3)))
    assert penalty.item() == pytest.approx((0.25 + 4 + 9) / 3)


def test_gradient_reaches_parameters_and_treats_z_as_constant():
    W = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    z = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    jacobian_penalty(Equilibrium.at(lambda z: torch.tanh(z @ W.T), z * 2), generator=generator).backward()
    assert z.grad is None
    probe = torch.empty(3, 5, dtype=torch.float64).bernoulli_(0.5, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def by_hand(W):
        slope = 1 - torch.tanh(2 * z.detach() @ W.T).square()
        return ((probe * slope) @ W).square().sum() / 15

    expected = torch.autograd.functional.jacobian(by_hand, W.detach())
    torch.testing.assert_close(W.grad, expected)


def test_penalty_gradient_passes_gradcheck():
    x = torch.randn(2, 4, dtype=torch.float64)
    z = torch.randn(2, 4, dtype=torch.float64)

    def penalty(W):
        generator = torch.Generator().manual_seed(3)
        return jacobian_penalty(
            Equilibrium.at(lambda z, x: torch.sigmoid(z @ W.T + x), z, x), generator=generator, num_probes=2
        )

    W = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(penalty, (W,))


def test_penalty_counts_every_leaf_of_a_nested_state():
    def f(z):
        return {"a": 2 * z["a"], "b": (3 * z["b"][0],)}

    z = {"a": torch.ones(2, 4), "b": (torch.ones(2, 2, 3),)}
    assert jacobian_penalty(Equilibrium.at(f, z)).item() == pytest.approx((4 * 4 + 6 * 9) / 10)


def test_penalty_without_gradients_keeps_no_graph():
    W = torch.randn(3, 3, requires_grad=True)
    with torch.no_grad():
        assert not jacobian_penalty(Equilibrium.at(lambda z: z @ W.T, torch.ones(1, 3))).requires_grad


def test_penalty_of_a_constant_map_is_zero():
    x = torch.ones(2, 3)
    assert jacobian_penalty(Equilibrium.at(lambda z: x, torch.ones(2, 3))).item() == 0
    W = torch.ones(3, requires_grad=True)
    assert jacobian_penalty(Equilibrium.at(lambda z: x * W, torch.ones(2, 3))).item() == 0


def test_half_precision_states_are_accumulated_in_single():
    z = torch.zeros(2, 4096, dtype=torch.bfloat16)
    penalty = jacobian_penalty(Equilibrium.at(lambda z: 0.5 * z, z))
    assert penalty.dtype == torch.float32
    assert penalty.item() == pytest.approx(0.25)


def test_generator_fixes_the_probes():
    M = matrices()
    z = torch.zeros(4, 12, dtype=M.dtype)

    def draw():
        return jacobian_penalty(Equilibrium.at(linear, z, M), generator=torch.Generator().manual_seed(5))

    assert draw() == draw()
    assert draw() != jacobian_penalty(Equilibrium.at(linear, z, M), generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_probes": 0}, "num_probes is 0; it must be an integer >= 1"),
        ({"probe": "uniform"}, "probe is 'uniform'; it must be one of 'rademacher', 'gaussian', 'sphere'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        jacobian_penalty(Equilibrium.at(torch.cos, torch.ones(1, 2)), **arguments)


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

    def test_it_lies_between_the_mean_of_all_squared_singular_values_and_the_largest(self):
        M = matrices(batch=3, dim=30)
        eq = Equilibrium.at(linear, torch.zeros(3, 30, dtype=M.dtype), M)
        assert M.square().sum() / 90 < operator_norm_penalty(eq) < torch.linalg.matrix_norm(M, 2).square().mean()

    def test_a_multiple_of_a_rotation_has_the_value_of_the_frobenius_penalty(self):
        Q = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64))[0]
        eq = Equilibrium.at(lambda z: 0.7 * z @ Q.T, torch.zeros(2, 9, dtype=torch.float64))
        assert operator_norm_penalty(eq, num_steps=1).item() == pytest.approx(0.49)
        assert jacobian_penalty(eq, num_probes=1, probe="sphere").item() == pytest.approx(0.49)

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

    def test_gradient_reaches_parameters_and_inputs_and_treats_z_as_constant(self):
        W = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
        z, x = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
        operator_norm_penalty(Equilibrium.at(lambda z, x: torch.tanh(z @ W.T + x), z * 2, x)).backward()
        assert z.grad is None
        assert W.grad.abs().sum() > 0
        assert (x.grad.abs().sum(dim=1) > 0).all()

    def test_a_sample_does_not_feel_its_neighbors(self):
        M = matrices(batch=3)
        other = M.clone()
        other[[0, 2]] = 1e3 * torch.randn(2, 12, 12, dtype=M.dtype)

        def gradient(M):
            M = M.clone().requires_grad_()
            eq = Equilibrium.at(linear, torch.zeros(3, 12, dtype=M.dtype), M)
            return torch.autograd.grad(operator_norm_penalty(eq, generator=seeded()), M)[0]

        assert torch.equal(gradient(M)[1], gradient(other)[1])
        # Nor does its value, once the start is forgotten.
        alone = [
            operator_norm_penalty(Equilibrium.at(linear, torch.zeros(1, 12).double(), m[None]), num_steps=300)
            for m in M
        ]
        together = operator_norm_penalty(Equilibrium.at(linear, torch.zeros(3, 12).double(), M), num_steps=300)
        assert together.item() == pytest.approx(torch.stack(alone).mean().item(), rel=1e-6)

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

    @pytest.mark.parametrize("scale", [1e-15, 1e-8, 1e8, 1e15])
    def test_it_does_not_depend_on_the_scale_of_the_jacobian(self, scale):
        M, z = matrices(batch=2, dtype=torch.float32), torch.zeros(2, 12)
        found = operator_norm_penalty(Equilibrium.at(linear, z, scale * M), generator=seeded()).item()
        expected = operator_norm_penalty(Equilibrium.at(linear, z, M), generator=seeded()).item()
        assert found / scale**2 == pytest.approx(expected, rel=1e-4)

    def test_a_constant_map_has_none(self):
        x, W = torch.ones(2, 3), torch.ones(3, requires_grad=True)
        assert operator_norm_penalty(Equilibrium.at(lambda z: x, torch.ones(2, 3))).item() == 0
        assert operator_norm_penalty(Equilibrium.at(lambda z: x * W + 0 * z, torch.ones(2, 3))).item() == 0

    def test_without_gradients_it_keeps_no_graph_and_half_precision_is_accumulated_in_single(self):
        W = torch.eye(3, dtype=torch.bfloat16, requires_grad=True)
        with torch.no_grad():
            penalty = operator_norm_penalty(Equilibrium.at(lambda z: z @ W.T, torch.ones(1, 3, dtype=torch.bfloat16)))
        assert not penalty.requires_grad
        assert penalty.dtype == torch.float32
        assert penalty.item() == pytest.approx(1, rel=1e-2)

    def test_generator_fixes_the_start(self):
        M = matrices()
        eq = Equilibrium.at(linear, torch.zeros(4, 12, dtype=M.dtype), M)
        first, again, other = (operator_norm_penalty(eq, num_steps=1, generator=seeded(s)) for s in (5, 5, 6))
        assert first == again != other

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match="num_steps is 0; it must be an integer >= 1"):
            operator_norm_penalty(Equilibrium.at(torch.cos, torch.ones(1, 2)), num_steps=0)
        with pytest.raises(TypeError, match="eq is a builtin_function_or_method; it must be an Equilibrium"):
            operator_norm_penalty(torch.cos)
