"""The penalty by differences: what it estimates, and the cells that only it can take."""

import math
import warnings

import pytest
import torch
from adjoints.test_second_order_refusals import Attention, Once
from jacobian.cells import dense_jacobians, matrices, multiscale, seeded, transformer, two_layers
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadeq import Equilibrium, PrecisionWarning, RandomnessWarning, jacobian_penalty
from steadeq.jacobian import _differences


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch):
    monkeypatch.setattr(_differences, "_said", set())


def penalty(eq, **options):
    return jacobian_penalty(eq, estimator="difference", **options)


def copies(z, num_copies):
    """Return a state of one sample, so many times."""
    return (
        tuple(copies(part, num_copies) for part in z)
        if isinstance(z, tuple)
        else z[:1].expand(num_copies, *z.shape[1:])
    )


@pytest.mark.parametrize(
    ("estimator", "make", "bias"),
    [
        *(("vjp", make, 0.0) for make in (two_layers, transformer, multiscale)),
        # Smooth; one with ReLUs; one with ReLUs throughout.
        *zip(3 * ["difference"], (two_layers, transformer, multiscale), (0.01, 0.02, 0.1), strict=True),
    ],
)
def test_bias_on_cells_is_what_the_documentation_says(estimator, make, bias):
    f, z, inputs = make()
    exact = dense_jacobians(f, z, inputs)[0].square().sum()
    z, inputs = copies(z, 250), tuple(copies(x, 250) for x in inputs)
    dim = sum(part[0].numel() for part in (z if isinstance(z, tuple) else (z,)))
    with torch.no_grad():
        found = torch.stack([jacobian_penalty(Equilibrium.at(f, z, *inputs), estimator=estimator) for _ in range(8)])
    standard_error = found.std() / math.sqrt(8)
    assert abs(found.mean() - exact / dim) < 5 * standard_error + bias * exact / dim


def test_the_bias_of_a_smooth_map_falls_with_the_square_of_the_state():
    # A step is a tenth of the state, so that a small state shows what a small step does.
    def relative_bias(size):
        z = torch.full((1, 1), size, dtype=torch.float64)
        exact = (1 - torch.tanh(z + 0.5).square()).square()
        return (penalty(Equilibrium.at(lambda z: torch.tanh(z + 0.5), z)) / exact - 1).item()

    assert relative_bias(0.02) / relative_bias(0.01) == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("num_probes", [1, 3])
def test_it_costs_two_evaluations_a_probe_at_points_around_the_state(num_probes):
    points = []

    def f(z):
        points.append(z)
        return 0.5 * z

    z = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    penalty(Equilibrium.at(f, z), num_probes=num_probes)
    assert len(points) == 2 * num_probes
    for ahead, behind in zip(points[::2], points[1::2], strict=True):
        torch.testing.assert_close((ahead + behind) / 2, z)
        # A twentieth of each sample's root mean square to either side.
        torch.testing.assert_close((ahead - z).abs(), 0.05 * z.square().mean(dim=1, keepdim=True).sqrt().expand(2, 2))


def test_gradient_passes_gradcheck_for_parameters_and_inputs():
    z = torch.randn(2, 4, dtype=torch.float64)

    def value(W, x):
        eq = Equilibrium.at(lambda z, x: torch.sigmoid(z @ W.T + x), z, x)
        return penalty(eq, num_probes=2, generator=seeded(3))

    W, x = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 4), (2, 4)))
    assert torch.autograd.gradcheck(value, (W, x))


def test_gradient_is_nearly_that_of_the_exact_penalty_and_treats_z_as_constant():
    W = matrices(batch=1, dim=5)[0].requires_grad_()
    z = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    eq = Equilibrium.at(lambda z: torch.tanh(z @ W.T), z * 2)
    gradients = []
    for estimator in ("vjp", "difference"):
        value = jacobian_penalty(eq, estimator=estimator, num_probes=500, generator=seeded())
        gradients.append(torch.autograd.grad(value, W, retain_graph=True)[0])
        assert torch.autograd.grad(value, z, allow_unused=True) == (None,)
    assert (gradients[0] - gradients[1]).norm() < 0.1 * gradients[0].norm()


def test_a_state_of_zero_steps_by_the_size_of_its_image_or_by_that_of_one():
    steps = []

    def f(z, x):
        steps.append(z)
        return 0.5 * z + x

    z = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    x = torch.tensor([[1e-3, 1e-3], [7.0, 7.0], [0.0, 0.0]])
    assert penalty(Equilibrium.at(f, z, x)).item() == pytest.approx(0.25, rel=1e-5)
    assert (steps[1] - z).abs()[:, 0].tolist() == pytest.approx([5e-5, 0.05, 0.05], rel=1e-3)


def test_a_map_that_writes_to_its_state_is_no_exception():
    W, z = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4)
    kept = z.clone()
    found = [
        torch.autograd.grad(penalty(Equilibrium.at(f, z), generator=seeded()), W)[0]
        for f in (lambda z: z.mul_(0.5) @ W.T, lambda z: 0.5 * z @ W.T)
    ]
    torch.testing.assert_close(*found)
    assert torch.equal(z, kept)


class TestRandomness:
    def test_both_evaluations_have_the_same_dropout_mask(self):
        # Diagonal, so that the penalty is the mean of the squared mask; with two masks it would be about 200.
        value = penalty(Equilibrium.at(nn.Dropout(0.5), torch.randn(1, 20000))).item()
        assert value == pytest.approx(2, rel=0.05)

    def test_all_probes_have_it_and_another_call_has_another(self):
        masks = []

        def f(z):
            masks.append(nn.functional.dropout(torch.ones_like(z), 0.5))
            return z * masks[-1]

        for _ in range(2):
            penalty(Equilibrium.at(f, torch.ones(2, 50)), num_probes=2)
        assert all(torch.equal(mask, masks[0]) for mask in masks[1:4])
        assert all(torch.equal(mask, masks[4]) for mask in masks[5:])
        assert not torch.equal(masks[0], masks[4])

    def test_what_is_drawn_afterwards_is_what_one_evaluation_leaves(self):
        z, cell = torch.randn(2, 8), nn.Dropout(0.5)
        torch.manual_seed(5)
        cell(z)
        expected = torch.rand(3)
        torch.manual_seed(5)
        penalty(Equilibrium.at(cell, z), num_probes=3, generator=seeded())
        assert torch.equal(torch.rand(3), expected)

    def test_probes_are_independent_of_the_masks(self):
        # Were the mask made of the numbers of the probe, J v would be all kept or all dropped signs.
        def f(z):
            return (z * nn.functional.dropout(torch.ones_like(z), 0.5)).sum(dim=1, keepdim=True).expand_as(z)

        found = torch.stack([penalty(Equilibrium.at(f, torch.ones(50, 40))) for _ in range(20)])
        assert found.mean().item() == pytest.approx(40 * 2, rel=0.15)

    def test_randomness_of_its_own_is_warned_of(self):
        own = seeded()

        def f(z):
            return z * (torch.rand(z.shape, generator=own) < 0.9)

        with pytest.warns(
            RandomnessWarning, match=r"^f draws random numbers from something other than .*as an input\.$"
        ):
            penalty(Equilibrium.at(f, torch.randn(4, 100)))

    def test_a_steep_map_is_no_reason_to_warn(self):
        assert penalty(Equilibrium.at(lambda z: 100 * z, torch.randn(4, 10))).item() == pytest.approx(1e4)

    def test_batch_norm_in_training_mode_has_the_jacobian_of_the_batch(self):
        norm = nn.BatchNorm1d(3, affine=False).double()
        z = nn.functional.normalize(torch.randn(6, 3, dtype=torch.float64))
        exact = torch.autograd.functional.jacobian(norm, z).square().sum() / z.numel()
        found = penalty(Equilibrium.at(norm, z), num_probes=4000, probe="sphere").item()
        assert found == pytest.approx(exact.item(), rel=0.1)


class TestPrecision:
    def cell(self, dtype):
        cell = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64)).to(dtype)
        return cell, torch.randn(8, 64).to(dtype)

    def gradient(self, cell, z, *, autocast):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = penalty(Equilibrium.at(cell, z), generator=seeded())
        assert value.dtype == torch.float32
        value.backward()
        return value.item(), torch.cat([p.grad.flatten().float() for p in cell.parameters()])

    @pytest.mark.parametrize("kind", ["autocast", "half"])
    def test_half_precision_is_close_to_single(self, kind):
        cell, z = self.cell(torch.float32)
        expected, exact = self.gradient(cell, z, autocast=False)
        cell.zero_grad()
        if kind == "half":
            cell, z = cell.bfloat16(), z.bfloat16()
        found, gradient = self.gradient(cell, z, autocast=kind == "autocast")
        assert found == pytest.approx(expected, rel=0.02)
        assert nn.functional.cosine_similarity(gradient, exact, dim=0) > 0.99

    def test_images_are_subtracted_in_single_precision(self):
        # The difference of the images is 0.1, of which half precision would keep 8 bits, times a weight of 1 + 2^-12.
        z = torch.ones(1, 512)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = penalty(Equilibrium.at(lambda z: z * (1 + 2**-12), z))
        assert found.item() == pytest.approx((1 + 2**-12) ** 2, rel=1e-5)

    @pytest.mark.parametrize("slope", [0.0, 0.002])
    def test_a_jacobian_below_rounding_is_warned_of(self, slope):
        z = torch.randn(4, 256, dtype=torch.bfloat16)
        x = torch.randn(4, 256, dtype=torch.bfloat16)
        with pytest.warns(PrecisionWarning, match=r"^The Jacobian is so small .* measures .*\.$"):
            penalty(Equilibrium.at(lambda z, x: x + slope * z, z, x))

    def test_it_is_said_once_even_if_somebody_touches_the_filters(self):
        z, x = torch.randn(2, 4, 256, dtype=torch.bfloat16)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(3):
                penalty(Equilibrium.at(lambda z, x: x + 0 * z, z, x))
        assert [warning.category for warning in said] == [PrecisionWarning]

    @pytest.mark.parametrize(("slope", "dtype"), [(0.3, torch.bfloat16), (1e-5, torch.float32), (0.0, torch.float64)])
    def test_other_jacobians_are_not(self, slope, dtype):
        z, x = torch.randn(2, 4, 256).to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = penalty(Equilibrium.at(lambda z, x: x + slope * z, z, x)).item()
        assert found == pytest.approx(slope**2, rel=0.1)


# The compiler warns of itself, and looks at gradients of states that are no leaves.
quiet = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)


class Block(nn.Module):
    """A small Transformer block, with fused attention or without."""

    def __init__(self, *, fused):
        super().__init__()
        self.attention, self.up, self.down = Attention(fused=fused), nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, z, x):
        h = z + self.attention(z[:, None])[:, 0]
        return nn.functional.layer_norm(h + self.down(nn.functional.gelu(self.up(h))) + x, (4,))


def value_and_gradients(f, module, z, x):
    """Return the penalty of a map and the gradients of the parameters behind it."""
    module.zero_grad()
    value = penalty(Equilibrium.at(f, z, x), generator=seeded())
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in module.parameters())]


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


class TestCellsWithoutSecondDerivatives:
    @pytest.fixture
    def block(self):
        block = Block(fused=True)
        z, x = torch.randn(2, 3, 6, 4)
        plain = Block(fused=False)
        plain.load_state_dict(block.state_dict())
        return block, z, x, value_and_gradients(plain, plain, z, x)

    def test_fused_attention(self, block):
        block, z, x, expected = block
        assert_same(value_and_gradients(block, block, z, x), expected)
        assert all(gradient.abs().sum() > 0 for gradient in expected)

    # A detached state gives the reentrant kind no reason to record the parameters.
    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_activation_checkpointing(self, use_reentrant, block):
        block, z, x, expected = block
        frugal = lambda *a: checkpoint(block, *a, use_reentrant=use_reentrant)  # noqa: E731
        assert_same(value_and_gradients(frugal, block, z, x), expected)

    def test_checkpointing_repeats_the_masks_too(self):
        cell = nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.5), nn.Linear(20, 20))
        z = torch.randn(8, 20)
        found = []
        for f in (lambda z, x: cell(z), lambda z, x: checkpoint(cell, z, use_reentrant=False)):
            torch.manual_seed(3)
            found.append(value_and_gradients(f, cell, z, z))
        assert_same(*found)

    @quiet
    @pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
    def test_compiled_code(self, backend, block):
        block, z, x, expected = block
        torch._dynamo.reset()
        compiled = torch.compile(block, backend=backend)
        for _ in range(2):
            assert_same(value_and_gradients(compiled, block, z, x), expected)
        torch._dynamo.reset()

    @quiet
    @pytest.mark.slow
    def test_compiled_dropout_draws_one_mask(self):
        torch._dynamo.reset()
        value = penalty(Equilibrium.at(torch.compile(nn.Dropout(0.5)), torch.randn(1, 20000))).item()
        assert value == pytest.approx(2, rel=0.05)
        torch._dynamo.reset()

    def test_a_function_that_can_be_differentiated_once(self):
        W = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
        z = torch.randn(3, 4, dtype=torch.float64)
        gradients = [
            torch.autograd.grad(penalty(Equilibrium.at(lambda z, s=s: s(z @ W.T), z), generator=seeded()), W)[0]
            for s in (Once.apply, torch.sin)
        ]
        torch.testing.assert_close(*gradients)

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
    def test_the_exact_estimator_names_this_one(self, block):
        block, z, x, _ = block
        with pytest.raises(RuntimeError, match=r'no second derivative.*estimator="difference"'):
            jacobian_penalty(Equilibrium.at(block, z, x))
        compiled = torch.compile(nn.Linear(4, 4), backend="aot_eager")
        with pytest.raises(RuntimeError, match=r'compiled code.*estimator="difference"'):
            jacobian_penalty(Equilibrium.at(compiled, torch.randn(2, 4)))
        reentrant = lambda z: checkpoint(nn.functional.tanh, z, use_reentrant=True)  # noqa: E731
        with pytest.raises(RuntimeError, match=r'use_reentrant=False.*estimator="difference"'):
            jacobian_penalty(Equilibrium.at(reentrant, torch.randn(2, 4)))
